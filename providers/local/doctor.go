//go:build linux

package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

var _ providers.Doctor = (*Provider)(nil)

// Diagnose says for every protection what this machine lets a sandbox have, and
// what would change that. It really builds sandboxes, which end at once, and
// leaves nothing behind; it needs no state directory and makes none.
func (p *Provider) Diagnose(ctx context.Context) []providers.Finding {
	d := &diagnosis{p: p}
	if !d.isolation(ctx) {
		d.state()
		return d.found
	}
	d.users()
	d.groups()
	d.files(ctx)
	d.locks()
	d.engines(ctx)
	d.state()
	return d.found
}

// diagnosis collects findings.
type diagnosis struct {
	p     *Provider
	host  *probeResult
	found []providers.Finding
}

func (d *diagnosis) add(level providers.FindingLevel, what, detail, remedy string) {
	d.found = append(d.found, providers.Finding{What: what, Level: level, Detail: detail, Remedy: remedy})
}

func (d *diagnosis) ok(what, detail string) { d.add(providers.FindingOK, what, detail, "") }
func (d *diagnosis) info(what, detail, remedy string) {
	d.add(providers.FindingInfo, what, detail, remedy)
}
func (d *diagnosis) worse(what, detail, remedy string) {
	d.add(providers.FindingDegraded, what, detail, remedy)
}
func (d *diagnosis) failed(what string, err error) {
	detail, remedy := err.Error(), ""
	if ie, ok := errors.AsType[*IsolationError](err); ok {
		remedy = ie.Remedy
		detail = fmt.Sprintf("%s: %s was refused", ie.Cause, ie.Step)
		if ie.Err != nil {
			detail += ": " + ie.Err.Error()
		}
	} else if e, ok := errors.AsType[*errdefs.Error](err); ok {
		remedy = e.Hint()
	}
	d.add(providers.FindingFailed, what, detail, remedy)
}

// isolation builds a sandbox. What no sandbox goes without is in this one
// finding.
func (d *diagnosis) isolation(ctx context.Context) bool {
	start := time.Now()
	err := probe(ctx)
	if err == nil {
		d.host, err = inspect()
	}
	if err != nil {
		d.failed("isolation", err)
		return false
	}
	d.ok("isolation", fmt.Sprintf("a sandbox was built and ended in %v: user, mount, pid, network, IPC and UTS namespaces, a procfs of its own, no capabilities, no_new_privs",
		time.Since(start).Round(time.Millisecond)))
	d.ok("seccomp", fmt.Sprintf("a filter of %d instructions", seccompInstructions(false)))
	return true
}

func (d *diagnosis) users() {
	switch d.host.mapping {
	case mapBlock:
		d.ok("users", fmt.Sprintf("65536 ids for each sandbox, from %d on; none of them is root of this machine", blockBase))
	case mapSubid:
		d.ok("users", "newuidmap and sub-ids are there; sandboxes have the users "+strings.Join(usersInside, " and "))
	default:
		_, err := subidTools()
		detail := "sandboxes have the one user " + defaultUser
		remedy := subidRemedy()
		if err != nil {
			detail += ": " + err.Error()
		}
		if errors.Is(err, errNoNewPrivs) {
			remedy = "start the program without no_new_privs (systemd: NoNewPrivileges=no; docker: without --security-opt no-new-privileges), or run as root"
		}
		d.worse("users", detail, remedy)
	}
}

// subidRemedy prints what to install and write, for this user.
func subidRemedy() string {
	name := strconv.Itoa(os.Geteuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return "install newuidmap and newgidmap (package uidmap or shadow-utils), and as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 " + name +
		", which writes " + name + ":100000:65536 to /etc/subuid and /etc/subgid; or run as root"
}

// groupFindings names what each controller is for.
var groupFindings = []struct{ limit, otherwise string }{
	{limitMemory, "memory is sampled, and the largest command killed above the limit"},
	{limitPids, "RLIMIT_NPROC limits processes"},
	{limitCPU, "commands are kept on as many processors as they may use"},
	{limitIO, "DiskRead and DiskWrite are refused"},
	{limitFreezer, "a pause stops processes with signals"},
}

func (d *diagnosis) groups() {
	h := d.p.groups()
	defer h.tidy()
	first := "" // whose remedy is that of the others
	advice := func(limit string) string {
		if first != "" {
			return "as for " + first
		}
		first = limit
		return groupAdvice()
	}
	for _, g := range groupFindings {
		at := h.at[g.limit]
		switch {
		case at.version == 0 && g.limit == limitIO:
			d.info(g.limit, h.why[g.limit]+"; "+g.otherwise, advice(g.limit))
		case at.version == 0:
			d.worse(g.limit, h.why[g.limit]+"; "+g.otherwise, advice(g.limit))
		case at.version == 1 && g.limit == limitIO:
			d.info(g.limit, "control groups of version 1 at "+at.parent+": what programs write through the cache is not limited", "use a system with control groups of version 2 only")
		default:
			d.ok(g.limit, fmt.Sprintf("control groups of version %d at %s; a limit was set and read back", at.version, at.parent))
		}
	}
}

// groupAdvice prints commands that give this user control groups.
func groupAdvice() string {
	mounts, err := readCgroupMounts()
	if err != nil || len(mounts) == 0 {
		return "mount the control group file systems: mount -t cgroup2 none /sys/fs/cgroup"
	}
	if os.Geteuid() == 0 {
		return "let this process write its control groups (docker: --privileged or --cgroupns=private with a writable /sys/fs/cgroup)"
	}
	return delegation(mounts, filepath.Base(programPath()), os.Geteuid(), os.Getegid())
}

// delegation says how a user gets groups of its own: from systemd where it runs
// with one tree, else from root.
func delegation(mounts []cgroupMount, program string, uid, gid int) string {
	unified := true
	for _, m := range mounts {
		unified = unified && m.version == 2
	}
	var b strings.Builder
	if unified {
		fmt.Fprintf(&b, "with systemd: systemd-run --user --scope -p Delegate=yes %s, or import providers/local/systemd in the program; without, as root: ", program)
	} else {
		b.WriteString("as root: ")
	}
	user := strconv.Itoa(uid)
	var points, trees []string
	for _, m := range mounts {
		dir := filepath.Join(m.point, "sandbox-"+user)
		if points = append(points, dir); m.version == 2 {
			trees = append(trees, dir)
			if unified {
				fmt.Fprintf(&b, "echo +memory +pids +cpu +io > %s/cgroup.subtree_control; ", m.point)
			}
		}
	}
	fmt.Fprintf(&b, "for d in %s; do mkdir -p $d; for f in . cgroup.procs cgroup.threads cgroup.subtree_control tasks; do test -e $d/$f && chown %d:%d $d/$f; done; done", strings.Join(points, " "), uid, gid)
	for _, dir := range trees {
		fmt.Fprintf(&b, "; mkdir -p %s/run; chown -R %d:%d %s/run; echo SHELL > %s/run/cgroup.procs", dir, uid, gid, dir, dir)
	}
	fmt.Fprintf(&b, "; where SHELL is the number of the shell that starts the program; then set cgroup_parent of the provider to /sandbox-%d. Or run as root", uid)
	return b.String()
}

// files is about what a sandbox shows and keeps.
func (d *diagnosis) files(ctx context.Context) {
	if d.host.mountSetattr {
		d.ok("root", "whole trees are made read-only at once")
	} else {
		d.info("root", "the kernel is older than 5.12: each mount is made read-only by itself, and volumes of root's sandboxes need a newer one", "use Linux 5.12 or later")
	}
	if err := probeOverlay(ctx); err != nil {
		d.found = append(d.found, overlayFinding(err))
	} else {
		d.ok("overlay", "layers of files can be mounted in a user namespace: snapshots, images, writable trees")
	}
	d.ok("scratch", "files that are written are kept in memory, with a hard limit of bytes and of files; on disk, where a sandbox asks for it, the limit is soft")
}

func overlayFinding(err error) providers.Finding {
	f := providers.Finding{What: "overlay", Level: providers.FindingInfo, Detail: "no snapshots, images and writable trees: " + err.Error()}
	if ie, ok := errors.AsType[*IsolationError](err); ok {
		f.Remedy = ie.Remedy
	}
	return f
}

// locks is about what stands behind the namespaces.
func (d *diagnosis) locks() {
	if abi := d.host.landlock; abi > 0 {
		d.ok("landlock", fmt.Sprintf("ABI %d", abi))
	} else {
		d.worse("landlock", "the kernel has none, or it is not enabled", "use a kernel of 5.13 or later and add landlock to the kernel argument lsm= (/sys/kernel/security/lsm lists what is on)")
	}
	if exe, err := runtimeExecutable(); err == nil {
		if exe.how == exePlain {
			d.worse("executable", "the runtime's binary is only out of reach because pid 1 is not dumpable", "use a kernel of 5.12 or later, or one with memfd_create")
		} else {
			d.ok("executable", "the runtime's binary is protected ("+exe.how+")")
		}
	}
	if err := checkDebug(readSysctl); err != nil {
		remedy := ""
		if e, ok := errors.AsType[*errdefs.Error](err); ok {
			remedy = e.Hint()
		}
		d.info("debug", sysctlPtrace+" is "+readSysctl(sysctlPtrace)+": AllowDebug is refused", remedy)
	} else if readSysctl(sysctlPtrace) == "1" {
		d.ok("debug", "with AllowDebug, processes may trace their children")
	} else {
		d.ok("debug", "with AllowDebug, processes of one user may trace each other")
	}
	d.ok("network", "sandboxes have a network namespace of their own; host shares this machine's and has to be asked for")
}

// fewFiles is the number of open files below which many sandboxes do not fit
// into one process: each takes about five.
const fewFiles = 1024

// gvisor runs a guest, where runsc is installed.
func (d *diagnosis) gvisor(ctx context.Context) {
	path, err := findRunsc()
	if err == nil {
		// Not noted: the state directory is left alone.
		err = proveOnce(ctx, path, func(gvisorProof) error { return tryGVisor(ctx, path) })
	}
	if err == nil {
		d.ok("gvisor", "a guest of "+path+" was started and has proved that it is one")
		return
	}
	// Nothing that was not asked for is missing.
	detail, remedy := err.Error(), ""
	if ie, ok := errors.AsType[*IsolationError](err); ok {
		remedy = ie.Remedy
	} else if e, ok := errors.AsType[*errdefs.Error](err); ok {
		detail, remedy = e.Message, e.Hint()
	}
	d.info("gvisor", detail, remedy)
}

func (d *diagnosis) engines(ctx context.Context) {
	d.gvisor(ctx)
	var n unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &n) == nil && n.Cur < fewFiles {
		d.info("open_files", fmt.Sprintf("this process may have %d open files; a sandbox takes about five", n.Cur), fmt.Sprintf("ulimit -n %d", fewFiles))
	}
}
