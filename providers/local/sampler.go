//go:build linux

package local

import (
	"bytes"
	"log/slog"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// sampler stands in for a memory limit where there is no control group: it
// sums what commands use and kills the largest one when that is too much. A
// process can go beyond the limit between two samples; the report says so.
type sampler struct {
	limit  int64 // bytes
	onDisk bool  // what is written is not memory
	kills  atomic.Uint64
	log    *slog.Logger
}

const (
	sampleSlow = 100 * time.Millisecond
	sampleFast = 10 * time.Millisecond // above half of the limit
)

// Directories of the file systems whose content is memory; the scratch is one of
// them unless it lies on disk.
const (
	scratchMount = "/tmp"
	shmMount     = "/dev/shm"
)

func (s *sampler) run() {
	for {
		used, pid := s.sample()
		if used > s.limit && pid > 0 {
			s.kill(pid, used)
		}
		if used > s.limit/2 {
			time.Sleep(sampleFast)
		} else {
			time.Sleep(sampleSlow)
		}
	}
}

func (s *sampler) kill(pid int, used int64) {
	if unix.Kill(pid, unix.SIGKILL) != nil {
		return
	}
	s.kills.Add(1)
	s.log.Warn("memory limit reached", "pid", pid, "used", used, "limit", s.limit)
	// Its memory is given back over some milliseconds; killing the next one
	// for it would be unjust.
	for i := 0; i < 100 && unix.Kill(pid, 0) == nil && residentOf(pid).total() > 0; i++ {
		time.Sleep(2 * time.Millisecond)
	}
}

// sample returns the memory in use and the process with the largest part.
func (s *sampler) sample() (used int64, largest int) {
	var most, shared int64
	d, err := os.Open("/proc")
	if err != nil {
		return 0, 0
	}
	names, _ := d.Readdirnames(-1)
	d.Close()
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil || pid == 1 {
			continue
		}
		r := residentOf(pid)
		used += r.private
		shared = max(shared, r.shared)
		if t := r.total(); t > most {
			most, largest = t, pid
		}
	}
	mounts := []string{shmMount, scratchMount}
	if s.onDisk {
		mounts = mounts[:1]
	}
	for _, m := range mounts {
		var st unix.Statfs_t
		if unix.Statfs(m, &st) == nil {
			used += int64(st.Blocks-st.Bfree) * st.Bsize
		}
	}
	// Shared memory is counted once, for the process that maps most of it:
	// adding it up would count the same pages for each of them.
	return used + shared, largest
}

// resident is memory of one process, in bytes.
type resident struct{ private, shared int64 }

func (r resident) total() int64 { return r.private + r.shared }

func residentOf(pid int) resident {
	b, err := readProc("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return resident{}
	}
	return parseResident(b)
}

// parseResident reads RssAnon and RssShmem of proc_pid_status(5).
func parseResident(status []byte) resident {
	var r resident
	for line := range bytes.Lines(status) {
		name, rest, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			continue
		}
		var to *int64
		switch string(name) {
		case "RssAnon":
			to = &r.private
		case "RssShmem":
			to = &r.shared
		default:
			continue
		}
		f := bytes.Fields(rest)
		if len(f) == 0 {
			continue
		}
		if kib, err := strconv.ParseInt(string(f[0]), 10, 64); err == nil && kib >= 0 && kib < 1<<50 {
			*to = kib << 10
		}
	}
	return r
}
