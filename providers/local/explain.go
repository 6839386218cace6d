//go:build linux

package local

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// machine is what explanations look at, so that tests can pretend.
type machine struct {
	sysctl  func(name string) string // "kernel.x" to its value; empty: not there
	masked  func() []string          // mounts on parts of /proc
	root    bool
	program string // path of this program
}

func thisMachine() machine {
	return machine{readSysctl, maskedProc, os.Geteuid() == 0, programPath()}
}

func readSysctl(name string) string {
	b, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func programPath() string {
	if p, err := os.Executable(); err == nil {
		return p
	}
	return "/path/to/program"
}

// maskedProc lists what is mounted on parts of /proc.
func maskedProc() []string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > 4 && strings.HasPrefix(f[4], "/proc/") {
			out = append(out, f[4])
		}
	}
	return out
}

// Settings that keep user namespaces away.
const (
	sysctlClone    = "kernel.unprivileged_userns_clone"
	sysctlAppArmor = "kernel.apparmor_restrict_unprivileged_userns"
	sysctlMaxUser  = "user.max_user_namespaces"
)

// explain turns a refused step of the construction into what the reader can do.
func (r *probeResult) explain(step string, errno syscall.Errno, err error) error {
	return thisMachine().explain(step, errno, err)
}

func (m machine) explain(step string, errno syscall.Errno, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	cause, remedy := m.cause(step, errno)
	return &IsolationError{Cause: cause, Step: step, Remedy: remedy, Err: err}
}

func (m machine) cause(step string, errno syscall.Errno) (Cause, string) {
	denied := errno == unix.EPERM || errno == unix.EACCES
	if denied && !m.root && m.sysctl(sysctlAppArmor) == "1" && m.needsCapability(step) {
		return CauseAppArmor, m.appArmorRemedy()
	}
	switch {
	case errno == unix.ENOSYS && step != stepSeccomp:
		return CauseKernel, "use Linux 5.4 or later"
	case step == stepClone:
		return m.cloneCause(errno)
	case step == stepMap:
		return CauseMapping, m.mapRemedy()
	case step == stepProc && denied:
		return CauseProc, m.procRemedy()
	case step == stepSeccomp:
		return CauseSeccomp, "use a kernel with seccomp filters (CONFIG_SECCOMP_FILTER)"
	case step == stepOverlay || step == stepAttribute:
		return CauseOverlay, overlayRemedy(step)
	case (step == stepLoopback || step == stepAddress) && denied:
		return CauseNetwork, "allow user namespaces to set up their own network, or run the container with seccomp and AppArmor profiles that do"
	case denied && m.isMount(step):
		return CauseMount, "run the container with a security profile that allows mounts in a user namespace (docker: --security-opt apparmor=unconfined --security-opt seccomp=unconfined), or choose the docker or a remote provider"
	}
	return otherCause(errno)
}

// otherCause is for what no row above knows.
func otherCause(errno syscall.Errno) (Cause, string) {
	if errno == unix.EMFILE || errno == unix.ENFILE {
		return CauseOther, "let this process open more files: ulimit -n 1024"
	}
	return CauseOther, "see the cause; another provider does not need it"
}

// needsCapability reports whether a step is one that AppArmor's restriction of
// user namespaces refuses.
func (m machine) needsCapability(step string) bool {
	return step == stepClone || step == stepMap || step == stepLoopback || step == stepAddress || m.isMount(step)
}

func (m machine) isMount(step string) bool {
	for _, verb := range []string{"mount ", "make mounts", "show ", "copy ", "attach ", "restrict ", "cover ", "empty ", "enter the new root", "hide "} {
		if strings.HasPrefix(step, verb) {
			return true
		}
	}
	return false
}

func (m machine) cloneCause(errno syscall.Errno) (Cause, string) {
	switch errno {
	case unix.ENOSPC, unix.EUSERS:
		limit := m.lowNamespaceLimit()
		return CauseUserNamespaceLimit, fmt.Sprintf("%s is %s: raise it with sysctl -w %s=15000, also in each user namespace that this process runs in", limit, orUnknown(m.sysctl(limit)), limit)
	case unix.EPERM, unix.EACCES:
		if m.sysctl(sysctlClone) == "0" {
			return CauseUserNamespaceSysctl, fmt.Sprintf("%s is 0: set it with sysctl -w %s=1, or run as root", sysctlClone, sysctlClone)
		}
		return CauseUserNamespaces, "run the container with user namespaces allowed (docker: --security-opt seccomp=unconfined, or a profile that allows clone and unshare), or choose the docker or a remote provider"
	case unix.EINVAL:
		return CauseKernel, "use a kernel with user, pid and network namespaces"
	case unix.ENOENT:
		return CauseOther, "mount a procfs at /proc for this process, too: init is executed through it"
	}
	return otherCause(errno)
}

// lowNamespaceLimit names the limit on namespaces that is the lowest: ENOSPC
// does not say which one was reached.
func (m machine) lowNamespaceLimit() string {
	lowest, value := sysctlMaxUser, math.MaxInt
	for _, kind := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		name := "user.max_" + kind + "_namespaces"
		if v, err := strconv.Atoi(m.sysctl(name)); err == nil && v < value {
			lowest, value = name, v
		}
	}
	return lowest
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

func (m machine) mapRemedy() string {
	if m.root {
		return fmt.Sprintf("ids from %d on are not mapped in the user namespace of this container: run as an ordinary user, or give the container these ids", blockBase)
	}
	return "check /etc/subuid and /etc/subgid, or remove newuidmap to run with one user"
}

func (m machine) procRemedy() string {
	what := "parts of /proc are covered"
	if masked := m.masked(); len(masked) > 0 {
		what = "/proc is covered at " + strings.Join(masked[:min(len(masked), 4)], ", ")
	}
	return what + ", and the kernel lets nobody mount a procfs that shows more: run the container with the system paths unmasked (docker: --security-opt systempaths=unconfined; podman: --security-opt unmask=ALL), or choose the docker or a remote provider"
}

// appArmorRemedy prints the profile that gives this one program back what
// Ubuntu 23.10 and later take from all.
func (m machine) appArmorRemedy() string {
	name := "sandbox-" + filepath.Base(m.program)
	return fmt.Sprintf("%s is 1: run as root, or allow this program with a profile in /etc/apparmor.d/%s:\n"+
		"abi <abi/4.0>,\ninclude <tunables/global>\nprofile %s %q flags=(unconfined) {\n  userns,\n}\n"+
		"and apparmor_parser -r /etc/apparmor.d/%s; or for all programs: sysctl -w %s=0", sysctlAppArmor, name, name, m.program, name, sysctlAppArmor)
}
