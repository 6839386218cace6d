//go:build linux

package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Each way in which a machine can refuse a sandbox is made on this one: the
// test program runs again where something is missing, and must say what.

const (
	envWithout = "LOCAL_TEST_WITHOUT"
)

func init() { roles["probe"] = probeRole }

// probeRole takes something away from this process, then tries to create a
// sandbox and prints how that went.
func probeRole() error {
	runtime.LockOSThread()
	for what := range strings.SplitSeq(os.Getenv(envWithout), ",") {
		if err := takeAway(what); err != nil {
			return fmt.Errorf("take away %s: %w", what, err)
		}
	}
	p, err := roleProvider()
	if err != nil {
		return err
	}
	defer p.Close()
	a, err := selfArtifact()
	if err != nil {
		return err
	}
	sb, err := p.Create(context.Background(), providers.CreateRequest{Artifacts: []providers.Artifact{a}})
	if err != nil {
		ie, ok := errors.AsType[*IsolationError](err)
		if !ok {
			return fmt.Errorf("not an IsolationError: %w", err)
		}
		if !errors.Is(err, errdefs.ErrIsolation) || ie.Remedy == "" || ie.Step == "" {
			return fmt.Errorf("incomplete: %#v", ie)
		}
		fmt.Printf("%s|%s|%v", ie.Cause, ie.Step, err)
		return nil
	}
	out, _, err := shell(context.Background(), sb, "for s in HUP INT QUIT ILL TRAP ABRT BUS FPE SEGV SYS TERM KILL STOP; do kill -$s 1; done 2>/dev/null; id -un; test -x "+sb.Artifacts[a.Digest]+" || echo no artifact; for d in / /usr /usr/local /usr/local/lib /etc/ssl/certs; do touch $d/marker 2>/dev/null && echo wrote to $d; done; ls /usr/local/lib")
	if err != nil {
		return err
	}
	r, err := p.Report(context.Background(), sb.ID)
	if err != nil {
		return err
	}
	fmt.Printf("created|%s|%s", out, r.UserNS)
	return p.Kill(context.Background(), sb.ID)
}

// takeAway makes one thing impossible for this process and its children.
func takeAway(what string) error {
	call, errno, _ := strings.Cut(what, "=")
	n, _ := strconv.Atoi(errno)
	switch call {
	case "clone":
		return refuse(unix.SYS_CLONE, syscall.Errno(n), 0, unix.CLONE_NEWUSER)
	case "mount":
		return refuse(unix.SYS_MOUNT, syscall.Errno(n), -1, 0)
	case "mount_setattr":
		return refuse(unix.SYS_MOUNT_SETATTR, syscall.Errno(n), -1, 0)
	case "open_tree":
		return refuse(unix.SYS_OPEN_TREE, syscall.Errno(n), -1, 0)
	case "ioctl":
		return refuse(unix.SYS_IOCTL, syscall.Errno(n), 1, unix.SIOCSIFFLAGS)
	case "seccomp":
		return refuse(unix.SYS_SECCOMP, syscall.Errno(n), -1, 0)
	case "limit":
		return os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0)
	case "procfs":
		if err := privately(); err != nil {
			return err
		}
		return unix.Mount("/dev/null", "/proc/kallsyms", "", unix.MS_BIND, "")
	case "memfd":
		return refuse(unix.SYS_MEMFD_CREATE, syscall.Errno(n), -1, 0)
	case "landlock":
		return refuse(unix.SYS_LANDLOCK_CREATE_RULESET, syscall.Errno(n), -1, 0)
	case "submount":
		if err := privately(); err != nil {
			return err
		}
		if err := unix.Mount("x", "/usr/local/lib", "tmpfs", 0, "mode=0777"); err != nil {
			return err
		}
		return os.WriteFile("/usr/local/lib/submount", nil, 0o666)
	case "":
		return nil
	}
	return fmt.Errorf("unknown %q", what)
}

// privately keeps mounts of this process from showing elsewhere.
func privately() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") }

// refuse installs a filter on all threads that answers a call with an error.
// With arg not negative only when that argument has one of bits (or, for
// ioctl, is bits).
func refuse(nr int, errno syscall.Errno, arg int, bits uint32) error {
	ret := uint32(unix.SECCOMP_RET_ERRNO) | uint32(errno)
	prog := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(nr), Jt: 0, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: uint32(16 + 8*max(arg, 0))},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: bits, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: ret},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	if arg < 0 {
		prog[3] = unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA | unix.BPF_K, K: 0}
	}
	if nr == unix.SYS_IOCTL {
		prog[3].Code = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&fprog)))
	if e != 0 {
		return e
	}
	return nil
}

func without(t *testing.T, what string, outer bool) string {
	t.Helper()
	return runWithout(t, "probe", what, outer)
}

// runWithout runs a role where something is missing. outer puts it into
// namespaces of its own, as its root, so that what it changes stays there.
func runWithout(t *testing.T, name, what string, outer bool) string {
	t.Helper()
	cmd := role(t, name, envWithout+"="+what, envState+"="+t.TempDir())
	if outer {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	}
	if outer && (os.Geteuid() != 0 || what == "" || what == "limit") {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_RESOURCE}
	}
	out, err := cmd.Output()
	if err != nil {
		if ee, ok := errors.AsType[*exec.ExitError](err); ok {
			t.Fatalf("%v: %s%s", err, out, ee.Stderr)
		}
		t.Fatal(err)
	}
	return string(out)
}

func errnoText(call string, e syscall.Errno) string { return call + "=" + strconv.Itoa(int(e)) }

func TestRefused(t *testing.T) {
	needIsolation(t)
	for _, c := range []struct {
		name, without string
		outer         bool
		want          Cause
		says          string
	}{
		{"clone filtered", errnoText("clone", unix.EPERM), false, CauseUserNamespaces, "seccomp"},
		{"clone limit", errnoText("clone", unix.ENOSPC), false, CauseUserNamespaceLimit, "user.max_user_namespaces is"},
		{"clone users", errnoText("clone", unix.EUSERS), false, CauseUserNamespaceLimit, "user.max_user_namespaces"},
		{"no namespaces in the kernel", errnoText("clone", unix.EINVAL), false, CauseKernel, "kernel"},
		{"namespace count is zero", "limit", true, CauseUserNamespaceLimit, "user.max_user_namespaces is 0"},
		{"mounts refused", errnoText("mount", unix.EACCES), false, CauseMount, "security profile"},
		{"loopback refused", errnoText("ioctl", unix.EPERM), false, CauseNetwork, "network"},
		{"no open_tree", errnoText("open_tree", unix.ENOSYS), false, CauseKernel, "Linux 5.4"},
		{"no filters", errnoText("seccomp", unix.EINVAL), false, CauseSeccomp, "seccomp"},
		{"procfs covered", "procfs", true, CauseProc, "/proc/kallsyms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := without(t, c.without, c.outer)
			cause, rest, _ := strings.Cut(out, "|")
			if Cause(cause) != c.want || !strings.Contains(rest, c.says) {
				t.Errorf("got %s; want cause %s, and %q in the text", out, c.want, c.says)
			}
		})
	}
}

// TestRefusedMapping is the case of root in a container with few ids.
func TestRefusedMapping(t *testing.T) {
	needIsolation(t)
	if os.Geteuid() != 0 {
		t.Skip("only root maps a block of ids")
	}
	if out := without(t, "", true); !strings.HasPrefix(out, string(CauseMapping)+"|") {
		t.Error(out)
	}
}

// TestDegrades takes away what a sandbox can do without. What is read-only has
// to stay so on the slow path of old kernels as well, mounts below mounts
// included.
func TestDegrades(t *testing.T) {
	needIsolation(t)
	noSetattr := errnoText("mount_setattr", unix.ENOSYS)
	for _, c := range []struct {
		without string
		outer   bool
	}{
		{errnoText("landlock", unix.ENOSYS), false},
		{errnoText("memfd", unix.ENOSYS), false},
		{noSetattr, false},
		{"submount", true},
		{"submount," + noSetattr, true},
	} {
		t.Run(c.without, func(t *testing.T) {
			out := without(t, c.without, c.outer)
			text, _ := strings.CutPrefix(out, "created|user\n")
			if text == out || strings.Contains(out, "wrote") || strings.Contains(out, "no artifact") || c.outer && !strings.Contains(out, "submount\n") {
				t.Error(out)
			}
		})
	}
}

func TestExplain(t *testing.T) {
	sysctls := map[string]string{}
	m := machine{
		sysctl: func(name string) string { return sysctls[name] },
		masked: func() []string { return []string{"/proc/acpi", "/proc/kcore"} }, program: "/opt/my tool",
	}
	for _, c := range []struct {
		name    string
		sysctls map[string]string
		root    bool
		step    string
		errno   syscall.Errno
		want    Cause
		says    []string
	}{
		{"filter", nil, false, stepClone, unix.EPERM, CauseUserNamespaces, []string{"docker"}},
		{"limit", map[string]string{sysctlMaxUser: "0"}, false, stepClone, unix.ENOSPC, CauseUserNamespaceLimit, []string{"user.max_user_namespaces is 0"}},
		{"debian", map[string]string{sysctlClone: "0"}, false, stepClone, unix.EPERM, CauseUserNamespaceSysctl, []string{"kernel.unprivileged_userns_clone is 0"}},
		{"ubuntu maps", map[string]string{sysctlAppArmor: "1"}, false, stepMap, unix.EPERM, CauseAppArmor, []string{"apparmor_restrict_unprivileged_userns is 1", `"/opt/my tool"`, "userns,"}},
		{"ubuntu loopback", map[string]string{sysctlAppArmor: "1"}, false, stepLoopback, unix.EPERM, CauseAppArmor, nil},
		{"ubuntu mounts", map[string]string{sysctlAppArmor: "1"}, false, "make mounts private", unix.EACCES, CauseAppArmor, nil},
		{"ubuntu clone", map[string]string{sysctlAppArmor: "1"}, false, stepClone, unix.EPERM, CauseAppArmor, nil},
		{"ubuntu root", map[string]string{sysctlAppArmor: "1"}, true, "make mounts private", unix.EACCES, CauseMount, []string{"profile"}},
		{"container", nil, true, "make mounts private", unix.EACCES, CauseMount, []string{"profile"}},
		{"masked", nil, false, stepProc, unix.EPERM, CauseProc, []string{"/proc/acpi", "systempaths=unconfined"}},
		{"old kernel", nil, false, "copy the mount of /usr", unix.ENOSYS, CauseKernel, []string{"5.4"}},
		{"no filters", nil, false, stepSeccomp, unix.EINVAL, CauseSeccomp, nil},
		{"no filters at all", nil, false, stepSeccomp, unix.ENOSYS, CauseSeccomp, nil},
		{"something else", nil, false, "set capabilities", unix.EPERM, CauseOther, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			sysctls, m.root = c.sysctls, c.root
			err := m.explain(c.step, c.errno, c.errno)
			ie, ok := errors.AsType[*IsolationError](err)
			if !ok || ie.Cause != c.want || !errors.Is(err, errdefs.ErrIsolation) || !errors.Is(err, c.errno) {
				t.Fatalf("%v", err)
			}
			for _, s := range c.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q is not in %v", s, err)
				}
			}
		})
	}
	if err := m.explain(stepClone, 0, context.Canceled); err != context.Canceled {
		t.Error(err)
	}
}
