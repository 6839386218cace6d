//go:build linux

package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOwnMemoryIsNoFile: the kernel lets a process read its own memory, and who
// asks it for files must not get that.
func TestOwnMemoryIsNoFile(t *testing.T) {
	r := newRig(t, nil)
	link := filepath.Join(t.TempDir(), "link")
	check(t, os.Symlink("/proc/self/environ", link))
	pid := os.Getpid()
	for _, p := range []string{
		"/proc/self/environ", "/proc/self/mem", "/proc/self/maps", "/proc/thread-self/environ", link,
		fmt.Sprintf("/proc/%d/environ", pid), fmt.Sprintf("/proc/%d/task/%d/environ", pid, pid), fmt.Sprintf("/proc/%d/environ", unix.Gettid()),
	} {
		if status, _ := r.download(t, p); !strings.HasPrefix(status, "403 ") {
			t.Errorf("%s: %s", p, status)
		}
		if a := r.call(t, "GET", "/files/download-stream?path="+p, "", "Range", "bytes=0-9"); a.status != 403 {
			t.Errorf("%s over HTTP: %d", p, a.status)
		}
	}
	// The rest of /proc is read as ever.
	if status, _ := r.download(t, "/proc/meminfo"); !strings.HasPrefix(status, "200") {
		t.Errorf("/proc/meminfo: %s", status)
	}
}
