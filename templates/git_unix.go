//go:build unix

package templates

import (
	"os/exec"
	"syscall"
)

// ownSession lets git and its helpers end together, and takes the terminal away, on
// which ssh would ask.
func ownSession(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
