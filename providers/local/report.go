//go:build linux

package local

import (
	"fmt"
	"strconv"

	"github.com/agent-sandbox/sandbox-go/providers"
)

// Mechanisms that stand in for a control group.
const (
	byCgroup1  = "cgroup1"
	byCgroup2  = "cgroup2"
	bySampling = "sampled"
	byRlimit   = "rlimit"
	byAffinity = "affinity"
	unlimited  = "none"
)

const groupRemedy = "run as root, or below a control group that is delegated to you: with systemd, import github.com/agent-sandbox/sandbox-go/providers/local/systemd or start the program with systemd-run --user --scope -p Delegate=yes PROGRAM; sandboxd doctor prints what to do elsewhere"

// degradations lists what this machine does not let us enforce for o. It is
// known before anything runs.
func degradations(host *cgroupHost, can *probeResult, exe string, o *order) []providers.Degradation {
	var out []providers.Degradation
	add := func(what, why, remedy string) {
		out = append(out, providers.Degradation{What: what, Why: why, Remedy: remedy})
	}
	if host.mechanism(limitMemory) == "" {
		add("memory", "no control group: "+host.why[limitMemory]+"; memory is sampled ten times a second and the largest command killed above the limit; files of memfd_create(2) that nobody maps are not seen", groupRemedy)
	}
	if host.mechanism(limitPids) == "" {
		add("pids", "no control group: "+host.why[limitPids]+"; RLIMIT_NPROC limits each user of the sandbox, with "+strconv.Itoa(threadReserve())+" more for the threads of init", groupRemedy)
	}
	if o.limits.cpuMilli != 0 && host.mechanism(limitCPU) == "" {
		add("cpu", fmt.Sprintf("no control group: %s; commands are kept on %d processors instead", host.why[limitCPU], o.limits.affinity()), groupRemedy)
	}
	if o.limits.diskWrite != 0 && host.at[limitIO].version == 1 {
		add(limitIO, "control groups of version 1 limit what is written past the cache only; what programs write as usual is written later by the kernel, without a limit", "use a system with control groups of version 2 only (systemd.unified_cgroup_hierarchy=1)")
	}
	if host.mechanism(limitFreezer) == "" {
		add(limitFreezer, "no control group: "+host.why[limitFreezer]+"; a pause stops each process with a signal, which debuggers see, and a program can have a timer wake it", groupRemedy)
	}
	if o.onDisk() {
		add("scratch", "files on disk have no hard limit: what is there is measured about once a second, and above the limit every command is killed; what a program has deleted and holds open is not seen", "leave Scratch empty, so that files are kept in memory, with a hard limit")
	}
	if can.landlock == 0 {
		add("landlock", "the kernel has no Landlock, or it is not enabled; mounts alone decide what can be reached", "use a kernel of 5.13 or later with landlock in its list of security modules")
	}
	if o.mapping == mapSingle {
		add("users", "newuidmap or sub-ids are missing; everything runs as the one user "+defaultUser, "install newuidmap and give yourself sub-ids in /etc/subuid and /etc/subgid, or run as root")
	}
	if exe == exePlain {
		add("executable", "the runtime's executable is not protected by a copy; only that pid 1 is not dumpable keeps it out of reach", "run on a kernel of 5.12 or later, or one with memfd_create")
	}
	if o.network == netHost {
		add("network", "network host was asked for: this machine's loopback, abstract sockets and metadata address can be reached", "use network loopback or none")
	}
	return out
}

// report joins what the construction says with how limits are enforced.
func (p *Provider) report(o *order, c constructed, volumes []volume) providers.Report {
	host := p.groups()
	or := func(limit, otherwise string) string {
		if m := host.mechanism(limit); m != "" {
			return m
		}
		return otherwise
	}
	r := providers.Report{
		Engine: o.engine, UserNS: c.userns, Root: c.root, Scratch: c.scratch, Network: c.network,
		Seccomp: c.seccomp, Landlock: "none", Executable: c.exe, Freezer: or(limitFreezer, bySignals), Degraded: o.degraded,
		Limits: map[string]string{
			"memory": or(limitMemory, bySampling),
			"pids":   or(limitPids, byRlimit),
			"cpu":    unlimited,
			"io":     unlimited,
			"disk":   c.scratch,
		},
	}
	if o.limits.cpuMilli != 0 {
		r.Limits["cpu"] = or(limitCPU, byAffinity)
	}
	if o.limits.rates() {
		r.Limits["io"] = host.mechanism(limitIO)
	}
	if o.engine == engineGVisor {
		r.Platform, r.Freezer, r.Limits["pids"] = gvisorPlatform, bySignals, engineGVisor
	} else if c.landlock > 0 {
		r.Landlock = fmt.Sprint(c.landlock)
	}
	for _, v := range volumes {
		r.Volumes = append(r.Volumes, v.String())
	}
	for _, w := range c.warnings {
		r.Degraded = append(r.Degraded, providers.Degradation{What: "root", Why: w, Remedy: "expose only what sandboxes need"})
	}
	return r
}
