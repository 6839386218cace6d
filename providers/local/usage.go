//go:build linux

package local

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/providers"
)

// Usage measures a sandbox, also a paused one. CPUPercent is the average since
// the measurement before, whoever made it, or since the start. Memory is that of
// its control group; without one it is the sum over all processes, and the cache
// is unknown. The disk is the scratch space, which is memory too unless it lies on
// disk; then it is what was found there in the last second.
func (p *Provider) Usage(ctx context.Context, id string) (providers.Usage, error) {
	const op = "measure sandbox"
	t, e, done, err := p.enter(ctx, op, id)
	if err != nil {
		return providers.Usage{}, err
	}
	defer done()
	var conf savedConfig
	if err := absent(e.load(fileConfig, &conf)); err != nil {
		if errors.Is(err, errGone) {
			return providers.Usage{}, t.settle(ctx, op, id)
		}
		return providers.Usage{}, err
	}
	a, err := t.ask(ctx, op, e, controlRequest{Op: opUsage})
	if err != nil {
		return providers.Usage{}, err
	}
	u := providers.Usage{At: time.Now(), CPUs: float64(conf.Resources.CPUMilli) / 1000, MemoryTotal: conf.Resources.MemoryMiB << 20}
	if u.CPUs == 0 {
		u.CPUs = float64(runtime.NumCPU())
	}
	if in := a.Usage; in != nil {
		u.CPUPercent, u.MemoryUsed = in.CPUPercent, in.Memory
		u.DiskUsed, u.DiskTotal = in.DiskUsed, in.DiskTotal
	}
	if used, cache, ok := groupMemory(ownCgroups(id, conf.Cgroups)); ok {
		u.MemoryUsed, u.MemoryCache = used, cache
	}
	return u, nil
}

// groupMemory reads what the groups of a sandbox say. What the kernel can take
// back at once, the cache of files that are not in memory only, is not in use.
func groupMemory(dirs []string) (used, cache int64, ok bool) {
	for _, dir := range slices.Backward(dirs) { // the last one holds the others
		for _, v := range []struct{ usage, file, shared string }{
			{"memory.current", "file", "shmem"},
			{"memory.usage_in_bytes", "total_cache", "total_shmem"},
		} {
			b, err := readProc(filepath.Join(dir, v.usage))
			if err != nil {
				continue
			}
			if used, err = strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err != nil {
				continue
			}
			stat, err := readProc(filepath.Join(dir, "memory.stat"))
			if err != nil {
				return used, 0, true
			}
			// Both are there, or fieldOf has the same large number for both.
			cache = max(0, fieldOf(stat, v.file)-fieldOf(stat, v.shared))
			return max(0, used-cache), cache, true
		}
	}
	return 0, 0, false
}

// insideUsage is what init measures.
type insideUsage struct {
	CPUPercent float64 `json:"cpu_percent"`
	Memory     int64   `json:"memory"` // bytes, of all processes and the scratch
	DiskUsed   int64   `json:"disk_used"`
	DiskTotal  int64   `json:"disk_total"`
}

// usageMeter measures, in init. The zero value counts from the start.
type usageMeter struct {
	watch *scratchWatch // nil: what is written is memory

	mu  sync.Mutex
	at  int64         // CLOCK_BOOTTIME of the measurement before, ns
	cpu time.Duration // then
}

func (m *usageMeter) take() *insideUsage {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at == 0 {
		if t, ok := readStat(1); ok {
			m.at = int64(t.start * uint64(tick))
		}
	}
	now, cpu := bootTime(), processorTime()
	u := &insideUsage{}
	if span := now - m.at; span > 0 && cpu > m.cpu {
		u.CPUPercent = 100 * float64(cpu-m.cpu) / float64(span)
	}
	m.at, m.cpu = now, max(cpu, m.cpu)
	u.Memory, _ = (&sampler{onDisk: m.watch != nil}).sample()
	var st unix.Statfs_t
	switch {
	case m.watch != nil:
		u.DiskTotal, u.DiskUsed = m.watch.limit.bytes, m.watch.used.Load()
	case unix.Statfs(scratchMount, &st) == nil:
		u.DiskTotal = int64(st.Blocks) * st.Bsize
		u.DiskUsed = int64(st.Blocks-st.Bfree) * st.Bsize
	}
	return u
}

// tick is the unit of times in /proc/PID/stat; the kernel has the same for all
// programs (USER_HZ).
const tick = time.Second / 100

// processorTime is that of all processes that there are, and of those that were
// waited for: their parents have inherited it.
func processorTime() time.Duration {
	pids, err := processes()
	if err != nil {
		return 0
	}
	var sum time.Duration
	for _, pid := range append(pids, 1) {
		if t, ok := readStat(pid); ok {
			sum += t.processor
		}
	}
	return sum
}

// procStat is one process as /proc/PID/stat shows it, proc_pid_stat(5).
type procStat struct {
	pid       int
	state     byte
	start     uint64        // ticks since boot; with pid it names a process for good
	processor time.Duration // of it and of its children that were waited for
}

func readStat(pid int) (procStat, bool) {
	b, err := readProc("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, false
	}
	return parseStat(pid, b)
}

func parseStat(pid int, b []byte) (procStat, bool) {
	start, err := parseStartTime(b)
	if err != nil {
		return procStat{}, false
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	t := procStat{pid: pid, state: f[0][0], start: start}
	for _, field := range f[11:15] { // utime, stime, cutime, cstime
		n, err := strconv.ParseInt(string(field), 10, 63)
		if err != nil || n < 0 || n > int64(1<<62/tick) {
			return procStat{}, false
		}
		t.processor += time.Duration(n) * tick
	}
	return t, true
}

// stopped reports whether no code of the process's first thread runs, or will
// before somebody continues it.
func (t procStat) stopped() bool {
	switch t.state {
	case 'T', 't', 'Z', 'X':
		return true
	}
	return false
}
