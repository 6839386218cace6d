//go:build linux

package server

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestMetrics(t *testing.T) {
	r := newRig(t, nil)
	resp, err := r.http.Get("http://sandbox/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var m map[string]float64
	if err := json.NewDecoder(resp.Body).Decode(&m); err != nil {
		t.Fatal(err)
	}
	if age := time.Now().Unix() - int64(m["ts"]); age < 0 || age > 60 {
		t.Errorf("ts is %v", m["ts"])
	}
	for _, c := range []struct {
		small, large string
	}{{"mem_used", "mem_total"}, {"mem_cache", "mem_total"}, {"disk_used", "disk_total"}, {"mem_used_mib", "mem_total_mib"}} {
		if small, large := m[c.small], m[c.large]; small < 0 || large <= 0 || small > large {
			t.Errorf("%s is %v, %s is %v", c.small, small, c.large, large)
		}
	}
	if m["mem_used"] == 0 || m["disk_used"] == 0 || m["cpu_count"] < 1 || m["cpu_used_pct"] < 0 || m["cpu_used_pct"] > 100 || len(m) != 10 {
		t.Errorf("got %v", m)
	}
	if got := m["mem_total_mib"]; got != float64(int64(m["mem_total"])>>20) {
		t.Errorf("mem_total_mib is %v", got)
	}
}

// TestMetricsOfOptions: whoever made the sandbox knows better.
func TestMetricsOfOptions(t *testing.T) {
	r := newRig(t, func(o *Options) {
		o.Usage = func() Usage {
			return Usage{CPUs: 1.5, CPUPercent: 12.3456, MemoryUsed: 3<<20 + 1, MemoryTotal: 64 << 20, MemoryCache: 5, DiskUsed: 6, DiskTotal: 7}
		}
	})
	resp, err := r.http.Get("http://sandbox/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var m map[string]float64
	if err := json.NewDecoder(resp.Body).Decode(&m); err != nil {
		t.Fatal(err)
	}
	delete(m, "ts")
	want := map[string]float64{
		"cpu_count": 2, "cpu_used_pct": 12.35, "mem_total_mib": 64, "mem_used_mib": 3,
		"mem_total": 64 << 20, "mem_used": 3<<20 + 1, "mem_cache": 5, "disk_used": 6, "disk_total": 7,
	}
	for k, v := range want {
		if m[k] != v {
			t.Errorf("%s is %v, want %v", k, m[k], v)
		}
	}
	if len(m) != len(want) {
		t.Errorf("got %v", m)
	}
}

func TestMeter(t *testing.T) {
	proc, group := t.TempDir(), t.TempDir()
	write := func(dir, name, content string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m := &meter{proc: proc, cgroup: group, disk: "/"}
	write(proc, "meminfo", "MemTotal:  1000 kB\nMemAvailable: 400 kB\nCached: 300 kB\n")
	write(proc, "stat", "cpu  10 0 10 70 10 0 0 0 5 0\ncpu0 1 2 3 4\n")
	u := m.measure()
	if u.MemoryTotal != 1000<<10 || u.MemoryUsed != 600<<10 || u.MemoryCache != 300<<10 || u.CPUPercent != 20 {
		t.Errorf("got %+v", u)
	}
	write(proc, "stat", "cpu  60 0 10 120 10 0 0 0 5 0\n")
	if u := m.measure(); u.CPUPercent != 50 {
		t.Errorf("busy for half of the time: got %v", u.CPUPercent)
	}
	if u := m.measure(); u.CPUPercent != 0 {
		t.Errorf("no time has passed: got %v", u.CPUPercent)
	}
	write(group, "memory.max", "512000\n")
	write(group, "memory.current", "300000\n")
	write(group, "memory.stat", "anon 1\nfile 100000\nshmem 40000\n")
	write(group, "cpu.max", "50000 100000\n")
	if u := m.measure(); u.MemoryTotal != 512000 || u.MemoryCache != 60000 || u.MemoryUsed != 240000 || u.CPUs != 0.5 {
		t.Errorf("in a control group: got %+v", u)
	}
	write(group, "memory.max", "max\n")
	write(group, "cpu.max", "max 100000\n")
	if u := m.measure(); u.MemoryTotal != 1000<<10 || u.CPUs < 1 {
		t.Errorf("without a limit: got %+v", u)
	}
	write(group, "memory/memory.limit_in_bytes", "512000\n")
	write(group, "memory/memory.usage_in_bytes", "300000\n")
	if u := m.measure(); u.MemoryTotal != 512000 || u.MemoryUsed != 300000 {
		t.Errorf("in a control group of version 1: got %+v", u)
	}
}

func FuzzMeter(f *testing.F) {
	f.Add([]byte("cpu  10 0 10 70 10 0 0 0 5 0\n"))
	f.Add([]byte("MemTotal: 18446744073709551615 kB\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if busy, total := parseProcessors(data); busy > total {
			t.Errorf("busy for %d of %d", busy, total)
		}
		for k, v := range parseFields(data, 1<<10) {
			if v < 0 {
				t.Errorf("%q is %d", k, v)
			}
		}
	})
}
