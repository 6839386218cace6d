//go:build linux

package local

import (
	"bytes"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// cgroupMount is one mounted hierarchy.
type cgroupMount struct {
	version     int
	point       string   // where it is mounted
	own         string   // our own group, as a path of the file system
	controllers []string // version 1: those of cgroupLimitNames that it has, and freezer
}

// procLimit bounds what is read of a file of /proc.
const procLimit = 4 << 20

func readProc(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, procLimit))
}

func readCgroupMounts() ([]cgroupMount, error) {
	mounts, err := readProc("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	own, err := readProc("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	return parseCgroupMounts(mounts, own), nil
}

// parseCgroupMounts joins proc_pid_mountinfo(5) and the list of our groups of
// cgroups(7). Hierarchies in which our group cannot be seen are left out.
func parseCgroupMounts(mountinfo, own []byte) []cgroupMount {
	ownPath := map[string]string{} // by controller; "" is the unified tree
	for line := range bytes.Lines(own) {
		f := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		for c := range strings.SplitSeq(f[1], ",") {
			ownPath[c] = f[2]
		}
	}
	var out []cgroupMount
	for line := range bytes.Lines(mountinfo) {
		left, right, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), " - ")
		f, g := strings.Fields(left), strings.Fields(right)
		if !ok || len(f) < 6 || len(g) < 3 {
			continue
		}
		m := cgroupMount{point: unescapeMount(f[4])}
		key := ""
		switch g[0] {
		case "cgroup2":
			m.version = 2
		case "cgroup":
			m.version = 1
			for c := range strings.SplitSeq(g[2], ",") {
				if c == "blkio" {
					m.controllers, key = append(m.controllers, limitIO), c
					continue
				}
				if c == limitFreezer || slices.Contains(cgroupLimitNames, c) {
					m.controllers, key = append(m.controllers, c), c
				}
			}
			if key == "" {
				continue
			}
		default:
			continue
		}
		path, ok := ownPath[key]
		if !ok || path == "/.." || strings.HasPrefix(path, "/../") { // above the root of our cgroup namespace
			continue
		}
		rel, err := filepath.Rel(unescapeMount(f[3]), path)
		if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
			continue
		}
		m.own = filepath.Join(m.point, rel)
		if !slices.ContainsFunc(out, func(o cgroupMount) bool { return o.version == m.version && slices.Equal(o.controllers, m.controllers) }) {
			out = append(out, m)
		}
	}
	return out
}

// unescapeMount undoes the octal escapes of mountinfo.
func unescapeMount(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// machineMemory is the memory that a process of ours can use at most, in
// bytes: that of the machine, or of our own control group where that is less.
// It is looked up once.
var machineMemory = sync.OnceValue(func() int64 {
	total := int64(math.MaxInt64)
	if b, err := readProc("/proc/meminfo"); err == nil {
		if kib := fieldOf(b, "MemTotal:"); kib < math.MaxInt64>>10 {
			total = kib << 10
		}
	}
	mounts, _ := readCgroupMounts()
	for _, m := range mounts {
		if m.version == 1 && slices.Contains(m.controllers, limitMemory) {
			if b, err := readProc(filepath.Join(m.own, "memory.stat")); err == nil {
				total = min(total, fieldOf(b, "hierarchical_memory_limit"))
			}
		}
		for dir := m.own; m.version == 2 && len(dir) >= len(m.point); dir = filepath.Dir(dir) {
			if b, err := readProc(filepath.Join(dir, "memory.max")); err == nil {
				if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
					total = min(total, n)
				}
			}
		}
	}
	return total
})

// fieldOf finds the line that starts with name and returns the number after
// it; MaxInt64 when there is none.
func fieldOf(content []byte, name string) int64 {
	for line := range bytes.Lines(content) {
		f := strings.Fields(string(line))
		if len(f) >= 2 && f[0] == name {
			if n, err := strconv.ParseInt(f[1], 10, 64); err == nil && n >= 0 {
				return n
			}
		}
	}
	return math.MaxInt64
}
