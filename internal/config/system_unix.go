//go:build unix

package config

import (
	"io/fs"
	"os"
	"os/exec"
	"syscall"
)

// openFile opens without waiting for the writer of a pipe; with itself, not
// through a link.
func openFile(file string, itself bool) (*os.File, error) {
	flags := os.O_RDONLY | syscall.O_NONBLOCK | syscall.O_NOCTTY
	if itself {
		flags |= syscall.O_NOFOLLOW
	}
	f, err := os.OpenFile(file, flags, 0)
	if info, lerr := os.Lstat(file); itself && err != nil && lerr == nil && info.Mode()&fs.ModeSymlink != 0 {
		return nil, errLink // the systems have no common number for it
	}
	return f, err
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
