//go:build linux

package local

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// clientLeaf is the group into which this process moves itself when the group
// that was delegated to it holds nothing else: groups with processes of their own
// cannot limit others. It goes with the group it is in, which whoever delegated
// removes.
const clientLeaf = "sandbox-go-client"

// delegatedTo reports whether a group of the unified tree was given to us, so
// that we may switch on controllers in it: it belongs to our user, or systemd has
// marked it (systemd.resource-control(5), Delegate=).
func delegatedTo(dir string) bool {
	var st unix.Stat_t
	if unix.Stat(dir, &st) == nil && st.Uid != 0 && int(st.Uid) == os.Geteuid() {
		return true
	}
	return markedDelegate(dir)
}

func markedDelegate(dir string) bool {
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		b := make([]byte, 8)
		if n, err := unix.Getxattr(dir, name, b); err == nil && string(b[:n]) == "1" {
			return true
		}
	}
	return false
}

// stepAside moves this process from dir, where it must be alone, to a group below.
func stepAside(dir string) error {
	b, err := readProc(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return err
	}
	if own := strconv.Itoa(os.Getpid()); string(bytes.TrimSpace(b)) != own {
		return unix.EBUSY
	}
	leaf := filepath.Join(dir, clientLeaf)
	if err := os.Mkdir(leaf, 0o755); err != nil && !os.IsExist(err) {
		return err
	}
	if err := writeCgroup(leaf, "cgroup.procs", strconv.Itoa(os.Getpid())); err != nil {
		_ = unix.Rmdir(leaf) // it was empty
		return err
	}
	return nil
}
