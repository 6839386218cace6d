//go:build linux

package local

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func init() {
	roles["tracer"] = tracerRole
	roles["tracee"] = traceeRole
}

// tracerRole is a small debugger: it follows the calls of a child, reads its
// registers and memory, attaches to another, and tries the same with pid 1.
func tracerRole() error {
	runtime.LockOSThread()
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a traced child: %w", err)
	}
	calls, err := followCalls(cmd.Process.Pid)
	if err != nil {
		return err
	}
	if err := attach(); err != nil {
		return err
	}
	for name, err := range map[string]error{"attach": unix.PtraceAttach(1), "seize": unix.PtraceSeize(1), "read": readMemory(1)} {
		if !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("%s pid 1: %w", name, err)
		}
	}
	fmt.Println("traced", calls > 10)
	return nil
}

func followCalls(pid int) (calls int, err error) {
	var ws unix.WaitStatus
	for {
		if _, err := unix.Wait4(pid, &ws, 0, nil); err != nil {
			return calls, err
		}
		if ws.Exited() {
			return calls, nil
		}
		if calls++; calls == 1 {
			var word [8]byte
			var regs unix.PtraceRegs
			if err := unix.PtraceGetRegs(pid, &regs); err != nil {
				return 0, fmt.Errorf("registers: %w", err)
			}
			if _, err := unix.PtracePeekData(pid, stackOf(&regs), word[:]); err != nil {
				return 0, fmt.Errorf("memory: %w", err)
			}
		}
		if err := unix.PtraceSyscall(pid, 0); err != nil {
			return calls, err
		}
	}
}

// attach stops and reads a child that did not ask for it.
func attach() error {
	cmd := exec.Command("/bin/sleep", "60")
	if err := cmd.Start(); err != nil {
		return err
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	pid := cmd.Process.Pid
	if err := unix.PtraceAttach(pid); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	if _, err := unix.Wait4(pid, nil, unix.WALL, nil); err != nil {
		return err
	}
	if err := readMemory(pid); !errors.Is(err, unix.EFAULT) {
		return fmt.Errorf("read the address 0 of a child: %w", err)
	}
	return unix.PtraceDetach(pid)
}

func readMemory(pid int) error {
	var b [8]byte
	local := unix.Iovec{Base: &b[0]}
	local.SetLen(len(b))
	remote := unix.RemoteIovec{Base: 0, Len: len(b)}
	_, err := unix.ProcessVMReadv(pid, []unix.Iovec{local}, []unix.RemoteIovec{remote}, 0)
	return err
}

// traceeRole makes its parent its tracer, and stops.
func traceeRole() error {
	runtime.LockOSThread()
	if _, _, e := unix.Syscall(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, uintptr(unsafe.Pointer(nil))); e != 0 {
		return e
	}
	return unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP) // this thread and no other is traced
}

func debugSandbox(t *testing.T, debug bool) (sb *providers.Sandbox, run func(role string) (string, string)) {
	t.Helper()
	p := testProvider(t)
	a, err := selfArtifact()
	if err != nil {
		t.Fatal(err)
	}
	sb = create(t, p, providers.CreateRequest{Debug: debug, Artifacts: []providers.Artifact{a}})
	return sb, func(role string) (string, string) {
		out, end := sh(t, sb, envRole+"="+role+" exec "+sb.Artifacts[a.Digest]+" 2>&1")
		return out, end.Status
	}
}

// A debugger works among the processes of a sandbox that allows it, and never
// on pid 1.
func TestDebug(t *testing.T) {
	if err := checkDebug(readSysctl); err != nil {
		t.Skip(err)
	}
	sb, run := debugSandbox(t, true)
	if out, _ := run("tracer"); out != "traced true\n" {
		t.Error(out)
	}
	// Nobody may leave a stopped child with pid 1, which would not know what to
	// do with it.
	start := time.Now()
	if out, end := run("tracee"); !strings.Contains(end, "killed") || time.Since(start) > 10*time.Second {
		t.Errorf("traced by pid 1: %s %s", out, end)
	}
	if out, _ := sh(t, sb, "echo alive"); out != "alive\n" {
		t.Error(out)
	}
}

func TestNoDebug(t *testing.T) {
	_, run := debugSandbox(t, false)
	if out, _ := run("tracer"); !strings.Contains(out, "start a traced child") || !strings.Contains(out, "not permitted") {
		t.Error(out)
	}
}

func TestCheckDebug(t *testing.T) {
	for value, ok := range map[string]bool{"": true, "0": true, "1": true, "2": false, "3": false} {
		err := checkDebug(func(string) string { return value })
		if (err == nil) != ok || !ok && !errors.Is(err, errdefs.ErrNotSupported) {
			t.Errorf("%q: %v", value, err)
		}
	}
}
