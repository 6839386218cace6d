//go:build !unix

package config

import (
	"io/fs"
	"os"
	"os/exec"
)

func openFile(file string) (*os.File, error) { return os.Open(file) }

func ownerOf(fs.FileInfo) (uid int, ours, known bool) { return 0, false, false }

func wholeGroup(*exec.Cmd) {}
