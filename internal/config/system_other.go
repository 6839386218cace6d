//go:build !unix

package config

import (
	"io/fs"
	"os"
	"os/exec"
)

func openFile(file string, itself bool) (*os.File, error) {
	if info, err := os.Lstat(file); itself && err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return nil, errLink
	}
	return os.Open(file)
}

func ownerOf(fs.FileInfo) (uid int, ours, known bool) { return 0, false, false }

func wholeGroup(*exec.Cmd) {}
