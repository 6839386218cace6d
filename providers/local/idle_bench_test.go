//go:build linux

package local

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
)

// BenchmarkIdle makes 500 sandboxes that live at once and do nothing, and says
// what one costs: memory, and the time of a creation beside none, 100 and nearly
// 500 others, each the median of 20. With -short it makes 60.
func BenchmarkIdle(b *testing.B) {
	n := 500
	if testing.Short() {
		n = 60
	}
	p := testProvider(b)
	for b.Loop() {
		var times []time.Duration
		var ids []string
		before := memAvailable(b)
		for range n {
			start := time.Now()
			ids = append(ids, create(b, p, providers.CreateRequest{Lifetime: time.Hour}).ID)
			times = append(times, time.Since(start))
		}
		used := before - memAvailable(b)
		var own int64
		p.mu.Lock()
		for _, c := range p.live {
			own += proportional(c.proc.pid)
		}
		p.mu.Unlock()
		around := func(i int) time.Duration {
			w := slices.Sorted(slices.Values(times[i : i+20]))
			return w[len(w)/2]
		}
		first, middle, last := around(0), around(min(100, n/2)), around(n-20)
		start := time.Now()
		for _, id := range ids {
			if err := p.Kill(b.Context(), id); err != nil {
				b.Fatal(err)
			}
		}
		ended := time.Since(start) / time.Duration(n)
		b.ReportMetric(float64(used)/float64(n)/(1<<20), "MiB/idle")
		b.ReportMetric(float64(own)/float64(n)/(1<<20), "init-MiB/idle")
		b.ReportMetric(float64(last)/float64(first), "last/first")
		b.ReportMetric(0, "ns/op")
		b.Logf("%d at once: a creation takes %.1f ms at first, %.1f ms beside 100, %.1f ms at last; the end of one %.1f ms",
			n, first.Seconds()*1000, middle.Seconds()*1000, last.Seconds()*1000, ended.Seconds()*1000)
	}
}

// memAvailable is what the machine can still give, in bytes.
func memAvailable(tb testing.TB) int64 {
	tb.Helper()
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		tb.Fatal(err)
	}
	return kibLine(b, "MemAvailable:")
}

// proportional is the memory of a process in bytes, of which shared pages count
// in parts; zero where this user may not look.
func proportional(pid int) int64 {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
	if err != nil {
		return 0
	}
	return kibLine(b, "Pss:")
}

func kibLine(b []byte, name string) int64 {
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) > 1 && string(f[0]) == name {
			n, _ := strconv.ParseInt(string(f[1]), 10, 64)
			return n << 10
		}
	}
	return 0
}
