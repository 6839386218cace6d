//go:build linux

package local

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/netrule"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Lifetimes. There is no maximum: the machine is the user's own.
const (
	minLifetime     = time.Second
	defaultLifetime = 5 * time.Minute
)

// Bounds of one request, so that a mistake is an error and not a full disk.
const (
	maxEnvBytes      = 1 << 20
	maxMetadataBytes = 64 << 10
	maxArtifacts     = 16
	maxNameBytes     = 256
)

// Limits that apply when nothing is asked for. Memory is half of the machine
// when that is less. A limit of processes is always there: a fork bomb must not
// be able to take the machine down.
const (
	defaultMemory    = 2 << 30
	defaultProcesses = 512
	defaultScratch   = 512 << 20

	minMemory    = 64 << 20 // the runtime itself needs about 20 MiB
	minScratch   = 1 << 20
	minCPUMilli  = 10 // the kernel's smallest quota is 1 ms of 100 ms
	minProcesses = 8
	maxProcesses = 1 << 20
)

// limits are the limits of one sandbox, all of them set but cpuMilli.
type limits struct {
	memory, scratch, processes int64
	cpuMilli                   int64 // zero: all processors
	diskRead, diskWrite        int64 // bytes per second; zero: unlimited
}

func badOption(message, suggestion string) error {
	return &errdefs.Error{Code: "E2011", Op: "create sandbox", Message: message, Suggestion: suggestion}
}

// clip shortens text of a user for a message.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

// checkRequest refuses what this provider cannot do, before anything is made,
// and fills in what is left open.
func checkRequest(r *providers.CreateRequest) error {
	r.Template = cmp.Or(r.Template, baseTemplate)
	if err := checkRootView(r); err != nil {
		return err
	}
	if r.Resources.GPU != "" {
		return &errdefs.Error{Code: "E8004", Op: "create sandbox",
			Message: "provider local gives sandboxes no GPU", Suggestion: "leave GPU empty, or name a provider that has GPUs"}
	}
	if r.Scratch != "" && r.Scratch != scratchMemory && r.Scratch != scratchDisk {
		return badOption(fmt.Sprintf("scratch %q is unknown; provider local has memory and disk", clip(r.Scratch)), "")
	}
	if r.Debug {
		if err := checkDebug(readSysctl); err != nil {
			return err
		}
	}
	if r.Lifetime == 0 {
		r.Lifetime = defaultLifetime
	}
	if err := checkLifetime("create sandbox", r.Lifetime); err != nil {
		return err
	}
	if len(r.RequestID) > maxNameBytes {
		return badOption(fmt.Sprintf("request id has %d bytes; at most %d", len(r.RequestID), maxNameBytes), "")
	}
	if err := checkEnv(r.Env); err != nil {
		return err
	}
	if err := checkMetadata(r.Metadata); err != nil {
		return err
	}
	if err := checkUser(r.User); err != nil {
		return err
	}
	if r.WorkDir != "" && (!path.IsAbs(r.WorkDir) || strings.ContainsRune(r.WorkDir, 0) || len(r.WorkDir) > 4095) {
		return badOption(fmt.Sprintf("working directory %q is not an absolute path", clip(r.WorkDir)), "")
	}
	if len(r.Artifacts) > maxArtifacts {
		return badOption(fmt.Sprintf("%d artifacts; at most %d", len(r.Artifacts), maxArtifacts), "")
	}
	for _, a := range r.Artifacts {
		if !path.IsAbs(a.Path) {
			return badOption(fmt.Sprintf("artifact path %q is not absolute", clip(a.Path)), "")
		}
	}
	return nil
}

func checkLifetime(op string, d time.Duration) error {
	if d >= minLifetime {
		return nil
	}
	return &errdefs.Error{Code: "E2011", Op: op,
		Message:    fmt.Sprintf("lifetime %v is below the minimum %v of provider local", d, minLifetime),
		Suggestion: "durations carry a unit, as in 5*time.Minute; to end a sandbox now, kill it"}
}

func checkEnv(env map[string]string) error {
	size := 0
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return badOption(fmt.Sprintf("environment variable %q: names are not empty and hold no = and NUL, values no NUL", clip(k)), "")
		}
		size += len(k) + len(v) + 2
	}
	if size > maxEnvBytes {
		return badOption(fmt.Sprintf("environment has %d bytes; at most %d", size, maxEnvBytes), "pass large values as a file")
	}
	return nil
}

func checkMetadata(m map[string]string) error {
	size := 0
	for k, v := range m {
		if k == "" {
			return badOption("metadata has an empty key", "")
		}
		size += len(k) + len(v)
	}
	if size > maxMetadataBytes {
		return badOption(fmt.Sprintf("metadata has %d bytes; at most %d", size, maxMetadataBytes), "")
	}
	return nil
}

func checkUser(u string) error {
	const letters, others = "abcdefghijklmnopqrstuvwxyz_", "0123456789.-"
	if u == "" || len(u) <= 32 && strings.Contains(letters, u[:1]) && strings.Trim(u, letters+others) == "" {
		return nil
	}
	return badOption(fmt.Sprintf("user %q is not a user name", clip(u)), "use user or root")
}

// networkMode picks the mode of a policy, and reads its rules.
func networkMode(n *providers.NetworkPolicy) (string, netrule.List, error) {
	if n == nil || n.Mode == "" && len(n.Allow) == 0 {
		return netLoopback, nil, nil
	}
	switch n.Mode {
	case netNone, netLoopback, netHost:
		if len(n.Allow) > 0 {
			return "", nil, badOption("network mode "+n.Mode+" takes no list of addresses", "")
		}
		return n.Mode, nil, nil
	case "all":
		return "", nil, &errdefs.Error{Code: "E8004", Op: "create sandbox",
			Message:    "provider local has no network mode all; it has none, loopback, host and lists of rules",
			Suggestion: "name what is to be reached; host shares the network of this machine, its loopback and metadata addresses included, and must be asked for by that name"}
	case "", netList:
		rules, err := netrule.ParseList(n.Allow)
		if err != nil {
			return "", nil, badOption(err.Error(), "")
		}
		for _, r := range rules {
			if r.Every {
				return "", nil, &errdefs.Error{Code: "E8004", Op: "create sandbox",
					Message: "network rule " + r.String() + ": provider local opens single ports only", Suggestion: "name the ports, each in a rule of its own"}
			}
		}
		return netList, rules, nil
	}
	return "", nil, badOption(fmt.Sprintf("network mode %q is unknown; provider local has none, loopback, host and list", clip(n.Mode)), "")
}

// chooseLimits fills in defaults and refuses what the machine does not have.
func chooseLimits(r providers.Resources, machine int64) (limits, error) {
	l := limits{
		memory:    min(defaultMemory, max(machine/2, minMemory)),
		processes: defaultProcesses,
		cpuMilli:  r.CPUMilli,
		diskRead:  r.DiskRead,
		diskWrite: r.DiskWrite,
	}
	var err error
	check := func(name, unit string, v, lo, hi int64) {
		if err == nil && v != 0 && (v < lo || v > hi) {
			err = badOption(fmt.Sprintf("%s %d %s is out of range: %d to %d %s on this machine", name, v, unit, lo, hi, unit), "")
		}
	}
	if most := int64(runtime.NumCPU()) * 1000; r.CPUMilli != 0 && (r.CPUMilli < minCPUMilli || r.CPUMilli > most) {
		return limits{}, badOption(fmt.Sprintf("CPU %v is out of range: %v to %v on this machine",
			float64(r.CPUMilli)/1000, float64(minCPUMilli)/1000, most/1000), "")
	}
	check("memory", "MiB", r.MemoryMiB, minMemory>>20, max(machine>>20, minMemory>>20))
	check("disk read rate", "bytes/s", r.DiskRead, minDiskRate, math.MaxInt64)
	check("disk write rate", "bytes/s", r.DiskWrite, minDiskRate, math.MaxInt64)
	check("processes", "", r.Processes, minProcesses, maxProcesses)
	if err != nil {
		return limits{}, err
	}
	if r.MemoryMiB != 0 {
		l.memory = r.MemoryMiB << 20
	}
	if r.Processes != 0 {
		l.processes = r.Processes
	}
	// Files are kept in memory: a full scratch must be "no space left" and not
	// the end of a process at the memory limit.
	l.scratch = min(defaultScratch, l.memory/2)
	if r.DiskMiB != 0 {
		if r.DiskMiB < minScratch>>20 || r.DiskMiB > math.MaxInt64>>20 || r.DiskMiB<<20 > l.memory/2 {
			return limits{}, badOption(fmt.Sprintf("disk %d MiB is out of range: %d to %d, half of the memory limit, which holds the files",
				r.DiskMiB, minScratch>>20, l.memory/2>>20), "raise the memory of the sandbox too")
		}
		l.scratch = r.DiskMiB << 20
	}
	return l, nil
}

// affinity is the number of processors that is enough for cpuMilli.
func (l limits) affinity() int {
	if l.cpuMilli == 0 {
		return 0
	}
	return int((l.cpuMilli + 999) / 1000)
}

// protections are the names that CreateRequest.Require may hold. Those of the
// first line never degrade. The limit of the disk is that of the scratch.
var protections = []string{
	"userns", "root", "seccomp",
	"isolation", "scratch", "disk", "memory", "pids", "cpu", "io", "landlock", "users", "executable", "network", "freezer",
}

// checkRequire refuses a creation that would lack a protection.
func checkRequire(require []string, degraded []providers.Degradation) error {
	for _, name := range require {
		if !slices.Contains(protections, name) {
			return &errdefs.Error{Code: "E2012", Op: "create sandbox",
				Message: fmt.Sprintf("required protection %q is unknown; there are %s", clip(name), strings.Join(protections, ", "))}
		}
		for _, d := range degraded {
			if d.What == name || d.What == "scratch" && name == "disk" {
				return &errdefs.Error{Code: "E2012", Op: "create sandbox",
					Message: "protection " + name + " is required and cannot be enforced here: " + d.Why, Suggestion: d.Remedy}
			}
		}
	}
	return nil
}
