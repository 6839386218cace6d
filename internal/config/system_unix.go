//go:build unix

package config

import (
	"io/fs"
	"os"
	"os/exec"
	"syscall"
)

// openFile opens without waiting for the writer of a pipe.
func openFile(file string) (*os.File, error) {
	return os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
}

// ownerOf is the user a file belongs to, and whether that is who runs this.
func ownerOf(info fs.FileInfo) (uid int, ours, known bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false, false
	}
	return int(st.Uid), int(st.Uid) == os.Geteuid(), true
}

// wholeGroup makes the end of cmd the end of what it has started.
func wholeGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
