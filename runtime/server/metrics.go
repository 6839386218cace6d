//go:build linux

package server

import (
	"bytes"
	"encoding/json"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Usage is what a sandbox uses and what it may use.
type Usage struct {
	CPUs       float64 // it may use
	CPUPercent float64 // of them all together, 0 to 100, since the measurement before

	// In bytes.
	MemoryUsed, MemoryTotal int64
	MemoryCache             int64 // of files; the kernel can take it back
	DiskUsed, DiskTotal     int64
}

// metrics answers with the usage, in the names and units of envd: bytes, MiB
// rounded down, seconds since 1970.
func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	u := s.usage()
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")
	// The client may be gone; there is nobody to tell.
	_ = json.NewEncoder(w).Encode(struct {
		Timestamp   int64   `json:"ts"`
		CPUs        int     `json:"cpu_count"`
		CPUPercent  float64 `json:"cpu_used_pct"`
		TotalMiB    int64   `json:"mem_total_mib"`
		UsedMiB     int64   `json:"mem_used_mib"`
		MemoryTotal int64   `json:"mem_total"`
		MemoryUsed  int64   `json:"mem_used"`
		MemoryCache int64   `json:"mem_cache"`
		DiskUsed    int64   `json:"disk_used"`
		DiskTotal   int64   `json:"disk_total"`
	}{
		time.Now().Unix(), max(1, int(math.Ceil(u.CPUs))), math.Round(100*u.CPUPercent) / 100,
		u.MemoryTotal >> 20, u.MemoryUsed >> 20, u.MemoryTotal, u.MemoryUsed, u.MemoryCache,
		u.DiskUsed, u.DiskTotal,
	})
}

func (s *Server) usage() Usage {
	if s.opts.Usage != nil {
		return s.opts.Usage()
	}
	return s.meter.measure()
}

// meter measures the machine, or the container, that this runs in.
type meter struct {
	proc, cgroup string // /proc and /sys/fs/cgroup
	disk         string // a path on it

	mu          sync.Mutex
	busy, total uint64 // guarded by mu; ticks at the measurement before
}

func (m *meter) measure() Usage {
	u := Usage{CPUs: float64(runtime.NumCPU()), CPUPercent: m.processors()}
	info := m.fields("meminfo", 1<<10)
	u.MemoryTotal, u.MemoryCache = info["MemTotal"], info["Cached"]
	u.MemoryUsed = max(0, u.MemoryTotal-info["MemAvailable"])
	m.limits(&u)
	var st unix.Statfs_t
	if unix.Statfs(m.disk, &st) == nil {
		u.DiskTotal = int64(st.Blocks) * st.Bsize
		u.DiskUsed = int64(st.Blocks-st.Bfree) * st.Bsize
	}
	return u
}

// processors is the part of the time, in percent, that they were busy since the
// measurement before, at the first since they were started.
func (m *meter) processors() float64 {
	data, err := os.ReadFile(filepath.Join(m.proc, "stat"))
	if err != nil {
		return 0
	}
	busy, total := parseProcessors(data)
	m.mu.Lock()
	defer m.mu.Unlock()
	spent, span := busy-m.busy, total-m.total
	if busy < m.busy || total < m.total || span == 0 {
		return 0
	}
	m.busy, m.total = busy, total
	return 100 * float64(min(spent, span)) / float64(span)
}

// parseProcessors reads the first line of /proc/stat, proc_stat(5): user, nice,
// system, idle, iowait, irq, softirq, steal; what follows is in user already.
func parseProcessors(data []byte) (busy, total uint64) {
	line, _, _ := bytes.Cut(data, []byte("\n"))
	f := strings.Fields(string(line))
	if len(f) < 5 || f[0] != "cpu" {
		return 0, 0
	}
	for i, field := range f[1:min(len(f), 9)] {
		n, err := strconv.ParseUint(field, 10, 56) // so that eight of them fit
		if err != nil {
			return 0, 0
		}
		total += n
		if idle := i == 3 || i == 4; !idle {
			busy += n
		}
	}
	return busy, total
}

// limits takes what the control group of a container says instead, where it is
// to be seen and below what the machine has.
func (m *meter) limits(u *Usage) {
	for _, v := range []struct{ limit, usage, stat, file, shared string }{
		{"memory.max", "memory.current", "memory.stat", "file", "shmem"},
		{"memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_cache", "total_shmem"},
	} {
		limit, err := m.number(v.limit)
		used, err2 := m.number(v.usage)
		if err != nil || err2 != nil || limit <= 0 || limit >= u.MemoryTotal {
			continue
		}
		data, _ := os.ReadFile(filepath.Join(m.cgroup, v.stat)) // without it nothing is cache
		stat := parseFields(data, 1)
		u.MemoryTotal = limit
		u.MemoryCache = max(0, stat[v.file]-stat[v.shared])
		u.MemoryUsed = max(0, used-u.MemoryCache)
		break
	}
	data, err := os.ReadFile(filepath.Join(m.cgroup, "cpu.max"))
	if f := strings.Fields(string(data)); err == nil && len(f) == 2 {
		quota, err := strconv.ParseFloat(f[0], 64)
		period, err2 := strconv.ParseFloat(f[1], 64)
		if err == nil && err2 == nil && quota > 0 && period > 0 {
			u.CPUs = min(u.CPUs, quota/period)
		}
	}
}

func (m *meter) number(file string) (int64, error) {
	data, err := os.ReadFile(filepath.Join(m.cgroup, file))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
}

func (m *meter) fields(file string, unit int64) map[string]int64 {
	data, err := os.ReadFile(filepath.Join(m.proc, file))
	if err != nil {
		return nil
	}
	return parseFields(data, unit)
}

// parseFields reads lines of a name and a number; a colon may follow the name.
func parseFields(data []byte, unit int64) map[string]int64 {
	out := map[string]int64{}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		if n, err := strconv.ParseInt(f[1], 10, 64); err == nil && n >= 0 && n <= math.MaxInt64/unit {
			out[strings.TrimSuffix(f[0], ":")] = n * unit
		}
	}
	return out
}
