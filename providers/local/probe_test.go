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
	if err := takeAway(os.Getenv(envWithout)); err != nil {
		return fmt.Errorf("take away: %w", err)
	}
	p, err := roleProvider()
	if err != nil {
		return err
	}
	defer p.Close()
	sb, err := p.Create(context.Background(), providers.CreateRequest{})
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
	out, _, err := shell(context.Background(), sb, `touch /usr/x /usr/local/x 2>/dev/null; touch /usr/local/lib/x 2>/dev/null; id -un; grep -c " /usr[ /].* ro,nosuid,nodev" /proc/self/mountinfo`)
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
	case "setgroups": // a file of procfs that cannot be written: no maps
		return unix.Mount("/dev/null", "/proc/self/uid_map", "", unix.MS_BIND, "")
	case "limit":
		return os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0)
	case "procfs":
		return unix.Mount("/dev/null", "/proc/kallsyms", "", unix.MS_BIND, "")
	case "memfd":
		return refuse(unix.SYS_MEMFD_CREATE, syscall.Errno(n), -1, 0)
	case "landlock":
		return refuse(unix.SYS_LANDLOCK_CREATE_RULESET, syscall.Errno(n), -1, 0)
	case "submount":
		return unix.Mount("x", "/usr/local/lib", "tmpfs", 0, "")
	case "":
		return nil
	}
	return fmt.Errorf("unknown %q", what)
}

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

// without runs probeRole where something is missing. outer puts it into
// namespaces of its own, as its root, so that what it changes stays there.
func without(t *testing.T, what string, outer bool) string {
	t.Helper()
	cmd := role(t, "probe", envWithout+"="+what, envState+"="+t.TempDir())
	if outer {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS}
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
			if c.outer && os.Geteuid() == 0 {
				t.Skip("root cannot map its block of ids in a namespace without them")
			}
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

// TestDegrades takes away what a sandbox can do without.
func TestDegrades(t *testing.T) {
	needIsolation(t)
	want := "created|" + map[bool]string{true: "user\n", false: "user\n"}[os.Geteuid() == 0]
	for _, what := range []string{"", errnoText("mount_setattr", unix.ENOSYS), errnoText("landlock", unix.ENOSYS), errnoText("memfd", unix.ENOSYS)} {
		t.Run(what, func(t *testing.T) {
			if out := without(t, what, false); !strings.HasPrefix(out, want) {
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
