//go:build linux

package local

import (
	"os"

	"golang.org/x/sys/unix"
)

// hostView remembers which files of this machine a sandbox shows. Their content
// it shows as it is; a file that was replaced, and a file system that was mounted
// since, it does not.
type hostView struct {
	mounts *os.File // /proc/self/mountinfo, which says when it changes; nil: unknown
	files  map[string]fileID
}

type fileID struct{ dev, ino uint64 }

// newHostView begins to watch the mounts.
func newHostView() *hostView {
	v := &hostView{files: map[string]fileID{}}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return v
	}
	v.mounts = f
	return v
}

// look notes what the sandbox of s shows.
func (v *hostView) look(s *launchSpec) {
	add := func(path string) {
		if path != "" {
			v.files[path] = identify(path)
		}
	}
	for _, e := range rootView() {
		add(e.source)
	}
	for _, path := range s.expose {
		add(path)
	}
	for _, b := range s.binds {
		add(b.source)
	}
	for _, w := range s.volumes {
		add(w.source)
	}
}

// identify returns the zero fileID for what is not there.
func identify(path string) fileID {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return fileID{}
	}
	return fileID{uint64(st.Dev), st.Ino}
}

func (v *hostView) unchanged() bool {
	if v.mounts == nil {
		return false
	}
	// proc_pid_mounts(5): a change is an error condition and priority data.
	p := []unix.PollFd{{Fd: int32(v.mounts.Fd()), Events: unix.POLLPRI}}
	n, err := retryEINTR(func() (int, error) { return unix.Poll(p, 0) })
	if n != 0 || err != nil {
		return false
	}
	for path, id := range v.files {
		if identify(path) != id {
			return false
		}
	}
	return true
}

func (v *hostView) close() {
	if v.mounts != nil {
		v.mounts.Close()
	}
}
