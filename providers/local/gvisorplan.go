//go:build linux

package local

import (
	"encoding/binary"
	"math"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/nsinit"
)

// A sandbox of engine gvisor is made by two programs. The first builds, from
// calls to this machine's kernel, what stands around runsc: the namespaces and
// the view of a native sandbox, with the tree of the guest in a directory. The
// second runs in pid 1 of the guest and builds, from calls to gVisor's kernel,
// what a native init finds.

// Where things lie around runsc.
const (
	guestRoot    = "guest"    // the tree that the guest has as its root
	guestMounts  = "mounts"   // what the guest mounts: artifacts, volumes
	gvisorDir    = "/gvisor"  // writable; runsc's state, the bundle
	gvisorRunsc  = "/runsc"   // the program
	gvisorChroot = "tmp"      // where runsc makes the root of its processes
	gvisorRoom   = 16 << 20   // bytes of gvisorDir
	guestStage   = "dev/from" // in the guest: where runsc mounts what lies in guestMounts
)

// A guestMount is one tree that runsc serves beside the root.
type guestMount struct {
	Name     string `json:"name"` // in guestMounts and guestStage
	ReadOnly bool   `json:"read_only"`
}

// guestMountNames lists what a guest mounts: its artifacts as one tree, then
// each volume.
func (s *launchSpec) guestMountNames() []guestMount {
	var out []guestMount
	if len(s.binds) > 0 {
		out = append(out, guestMount{"artifacts", true})
	}
	for i, v := range s.volumes {
		out = append(out, guestMount{volumeMount(i), v.readOnly})
	}
	return out
}

func volumeMount(i int) string { return "volume" + strconv.Itoa(i) }

// planGVisor returns the calls that build what stands around runsc.
func planGVisor(s *launchSpec, host *probeResult, exposed []viewEntry, trees treeMaker) (*program, error) {
	p := &planner{program: newProgram(), s: s, host: host, trees: trees, sources: map[string]nsinit.Arg{}}
	view := slices.Concat(rootView(), exposed)

	p.begin()
	if err := p.openSources(view); err != nil {
		return nil, err
	}
	if err := p.openSource(gvisorRunsc[1:], s.gvisor.runsc, roFlags, false); err != nil {
		return nil, err
	}
	if s.mapping.manyUsers() {
		p.becomeRoot()
	}
	p.newRoot()
	p.guestTree(view)
	p.mkdir("proc", 0o555)
	// Nothing of it is covered: only runsc sees it, which mounts it anew for its
	// processes, and the kernel allows that only where all of it can be seen.
	p.mount(stepProc, "proc", "proc", "proc", noDevSuid|unix.MS_NOEXEC, "")
	p.outerDev(view)
	p.guestSources()
	p.show(gvisorRunsc[1:], false)
	for _, e := range systemView("/") { // in case runsc is linked to libraries
		p.symlink(guestRoot+"/"+e.target, e.target)
	}
	p.mkdir(gvisorChroot, 0o755)
	p.mkdir(gvisorDir[1:], 0o700)
	p.mount("mount "+gvisorDir, "gvisor", gvisorDir[1:], "tmpfs", noDevSuid, "mode=0700,size="+strconv.Itoa(gvisorRoom))
	p.network()
	p.enter()
	p.outerLimits()
	p.outerLock()
	return p.program, nil
}

// guestTree builds the root of the guest, but for what is mounted from inside.
func (p *planner) guestTree(view []viewEntry) {
	p.mkdir(guestRoot, 0o755)
	p.add("enter the guest's root", unix.SYS_CHDIR, nsinit.Str(guestRoot))
	outer, base := p.program.made, *p.host
	base.base = path.Join(base.base, guestRoot)
	host := p.host
	p.host, p.program.made = &base, map[string]bool{".": true}

	p.systemFiles(view)
	for _, dir := range []string{"proc", "dev", "tmp", "var/tmp", "run", "home/user", "root"} {
		p.mkdir(dir, 0o755)
	}
	for _, m := range p.s.guestMountNames() {
		p.mkdir(guestStage+"/"+m.Name, 0o755)
	}
	for _, x := range p.s.places {
		if !inScratch(x.target) {
			p.target(x.target[1:], x.dir)
		}
	}
	for _, v := range p.s.volumes {
		if !inScratch(v.target) {
			p.target(v.target[1:], true)
		}
	}
	p.host, p.program.made = host, outer
	p.add("leave the guest's root", unix.SYS_CHDIR, nsinit.Str(host.base))
}

// inScratch reports whether a path lies in a directory that is mounted from
// inside the guest.
func inScratch(at string) bool {
	return within(at, "/dev") || slices.ContainsFunc(scratchPlaces, func(dir string) bool { return within(at, dir) })
}

// guestHas reports whether a path is in the tree that guestTree makes.
func guestHas(at string) bool {
	if strings.HasPrefix(at, scratchAt+"/") {
		return false
	}
	at = "/" + at
	return !inScratch(at) || !within(at, "/dev") && slices.Contains(scratchPlaces, at)
}

// outerDev is the /dev of runsc.
func (p *planner) outerDev(view []viewEntry) {
	p.mkdir("dev", 0o755)
	p.mount("mount /dev", "dev", "dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0755,size=64k,nr_inodes=64")
	for _, e := range view {
		if e.device && e.target != "dev/tty" {
			p.target(e.target, false)
			p.attach("/"+e.target, p.sources[e.target], e.target)
		}
	}
	p.mount("make /dev read-only", "", "dev", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NOEXEC, "")
}

// guestSources attaches what runsc will serve beside the root of the guest.
func (p *planner) guestSources() {
	restrict := func(at string, flags uintptr) {
		if !p.host.mountSetattr {
			p.mount("restrict /"+at, "", at, "", unix.MS_REMOUNT|unix.MS_BIND|flags, "")
		}
	}
	for _, b := range p.s.binds {
		at := guestMounts + "/artifacts" + strings.TrimPrefix(b.target, artifactRoot)
		p.target(at, b.dir)
		p.attach(b.target, p.sources[b.target], at)
		restrict(at, noDevSuid|unix.MS_RDONLY)
	}
	for i, v := range p.s.volumes {
		at := guestMounts + "/" + volumeMount(i)
		p.target(at, true)
		p.attach(v.target, p.sources[v.target], at)
		restrict(at, v.flags())
	}
}

// outerLimits lowers what runsc may use. There is no limit of file sizes: the
// memory of the guest is one file.
func (p *planner) outerLimits() {
	p.rlimit(unix.RLIMIT_CORE, 0)
	p.rlimit(unix.RLIMIT_NOFILE, 65536)
	if p.s.affinity > 0 {
		p.add("choose processors", unix.SYS_SCHED_SETAFFINITY, nsinit.Int(0), nsinit.Int(len(affinityMask{})), nsinit.Bytes(chooseCPUs(p.s.affinity))).All = true
	}
}

// outerLock gives up what runsc does not need. It needs every capability within
// its user namespace to shut its own processes in, and brings its own filters of
// system calls.
func (p *planner) outerLock() {
	p.add("close inherited descriptors", nsinit.CloseInherited)
	p.add("take signals from the runtime", nsinit.Deafen)
	first := len(p.calls)
	if p.s.mapping.manyUsers() {
		p.becomeRoot()
	}
	p.keyring()
	p.add("enter a cgroup namespace", unix.SYS_UNSHARE, nsinit.Int(unix.CLONE_NEWCGROUP))
	p.prctl("set no_new_privs", unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	for i := first; i < len(p.calls); i++ {
		p.calls[i].All = true
	}
	p.add("set the process name", unix.SYS_PRCTL, nsinit.Int(unix.PR_SET_NAME), nsinit.Str("sandbox-init"))
	p.prctl("become undumpable", unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

// Descriptors of pid 1 of the guest.
const (
	guestListener = 4 // connections to the runtime arrive on it
	guestRequests = 5 // connections of the life-cycle protocol
	guestLinks    = 6 // links to the network, with a list
)

// planGuest returns the program of pid 1 of the guest of s: the calls that bring
// it to where the init of a native sandbox is. It has the root that guestTree
// made, read-only, and gVisor's own /proc, /sys and /dev.
func planGuest(s *launchSpec) *nsinit.Program {
	inner := *s
	inner.mapping = idMapping{kind: mapBlock} // every user that there can be
	kernel := &probeResult{mountSetattr: true, lastCap: unix.CAP_CHECKPOINT_RESTORE}
	p := &planner{program: newProgram(), s: &inner, host: kernel, guest: true, sources: map[string]nsinit.Arg{}}
	p.there = guestHas

	p.proveGVisor()
	p.add("set the file mode mask", unix.SYS_UMASK, nsinit.Int(0o022))
	p.scratch()
	p.guestArtifacts()
	p.guestVolumes()
	p.guestGroups()
	p.guestDev()
	p.guestProc()
	files := []nsinit.File{{Name: fdListener, FD: guestListener}, {Name: fdControl, FD: guestRequests}}
	if s.allow != nil {
		p.guestNetwork(s.allow)
		files = append(files, nsinit.File{Name: fdLinks, FD: guestLinks})
	}
	p.detach("sys") // below it lie the files that the tree has
	p.mount("restrict /", "", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|noDevSuid, "")
	p.lock()

	return &nsinit.Program{Calls: p.calls, Files: append(p.opened, files...)}
}

// guestNetwork is allow for gVisor's kernel, in which all of the prefix of an
// address of the loopback device is local with IPv4, and only the address itself
// with IPv6. So a name has no address of IPv6.
func (p *planner) guestNetwork(n *netPlan) {
	v4, v6 := n.guestRoutes()
	p.add("open a socket for addresses", unix.SYS_SOCKET, nsinit.Int(unix.AF_NETLINK), nsinit.Int(unix.SOCK_RAW|unix.SOCK_CLOEXEC), nsinit.Int(unix.NETLINK_ROUTE))
	link := p.store()
	for _, r := range slices.Concat([]netip.Prefix{block4}, v4, v6) {
		at := r
		if !r.IsSingleIP() {
			at = netip.PrefixFrom(r.Addr().Next(), r.Bits())
		}
		p.netlink(stepAddress, link, newAddress(at), nil)
		if last := lastAddress(r); last.IsValid() {
			p.netlink(stepAddress, link, newAddress(last), nil)
		}
	}
	p.close(link)
	reg := 0
	for _, l := range n.guestListeners() {
		reg = p.listen(l, reg, nil)
		p.keepListener(l, reg)
	}
}

// lastAddress is the last address of a range of IPv4 as a prefix: gVisor takes it
// for a broadcast, which nobody answers, unless it is the device's. It is not valid
// where there is no such need.
func lastAddress(r netip.Prefix) netip.Prefix {
	if r.Addr().Is6() || r.Bits() > 30 || r.Bits() == 0 {
		return netip.Prefix{}
	}
	b := r.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])|math.MaxUint32>>r.Bits())
	return netip.PrefixFrom(netip.AddrFrom4(b), 32)
}

// guestRoutes are those routes that a guest can have. None is within another: an
// address has one prefix, and they may begin with the same.
func (n *netPlan) guestRoutes() (v4, v6 []netip.Prefix) {
	all, v6 := n.routes()
	slices.SortStableFunc(all, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	for _, r := range all {
		if !slices.ContainsFunc(v4, r.Overlaps) {
			v4 = append(v4, r)
		}
	}
	return v4, slices.DeleteFunc(v6, func(r netip.Prefix) bool { return !r.IsSingleIP() })
}

func (n *netPlan) guestListeners() []wantedListener {
	all := n.listeners()
	if _, v6 := n.guestRoutes(); len(v6) == 0 {
		all = slices.DeleteFunc(all, func(l wantedListener) bool { return l.family == unix.AF_INET6 })
	}
	return all
}

const stepProveGVisor = "find gVisor's kernel"

// proveGVisor fails in any other kernel: the log of gVisor's begins with its
// name, and what another one answers to syslog(2) does not.
func (p *planner) proveGVisor() {
	const sign = "Starting gVisor..."
	c := p.add(stepProveGVisor, unix.SYS_SYSLOG, nsinit.Int(3), nsinit.Out(64), nsinit.Int(64)) // SYSLOG_ACTION_READ_ALL
	c.ExpectAt, c.Expect = len("<6>[   0.000000] "), []byte(sign)
}

func (p *planner) guestArtifacts() {
	p.mkdir(artifactRoot[1:], 0o755)
	if len(p.s.binds) > 0 {
		p.mount("show "+artifactRoot, guestStage+"/artifacts", artifactRoot[1:], "", unix.MS_BIND, "")
		return
	}
	p.mount("mount "+artifactRoot, "artifacts", artifactRoot[1:], "tmpfs", noDevSuid|unix.MS_RDONLY, "mode=0755,size=4k,nr_inodes=2")
}

func (p *planner) guestVolumes() {
	for i, v := range p.s.volumes {
		p.way(v.target[1:])
		p.target(v.target[1:], true)
		p.mount("show "+v.target, guestStage+"/"+volumeMount(i), v.target[1:], "", unix.MS_BIND, "")
	}
}

// guestGroupKinds are the files of control groups that pid 1 of a guest has. The
// groups have the names of the kinds.
var guestGroupKinds = []string{groupWork, groupInit}

// guestGroups makes control groups of the guest's kernel that limit the number of
// processes: as on this machine with version 2 one for init, one for commands, and
// one around both. They are held by their open files and by init, which needs no
// mount. Groups of version 1 would not do: gVisor asks only one of the hierarchies
// that a process is in, whichever it meets first.
func (p *planner) guestGroups() {
	n := p.s.gvisor.processes
	set := func(file, text string) { p.write("dev/sandbox/"+file, 0, text) }
	p.detach("dev")
	p.mount("mount the control groups", "cgroup", "dev", "cgroup2", noDevSuid|unix.MS_NOEXEC, "nsdelegate")
	p.mkdir("dev/sandbox/init", 0o755)
	set("cgroup.subtree_control", "+pids")
	p.mkdir("dev/sandbox/work", 0o755)
	set("pids.max", strconv.FormatInt(n+spareTasks, 10))
	set("work/pids.max", strconv.FormatInt(n, 10))
	set("init/cgroup.procs", "0")
	for i, group := range guestGroupKinds {
		flags := unix.O_WRONLY
		if group == groupInit {
			flags = unix.O_RDONLY
		}
		p.add("open the control group "+group, unix.SYS_OPENAT, atCwd, nsinit.Str("dev/sandbox/"+group+"/cgroup.procs"), nsinit.Int(flags|unix.O_CLOEXEC), nsinit.Int(0))
		p.store()
		p.opened = append(p.opened, nsinit.File{Name: fdExtra + strconv.Itoa(i), FD: nsinit.Opened(p.reg)})
	}
	p.detach("dev")
}

// guestDev makes a /dev with the nodes that a native sandbox has.
func (p *planner) guestDev() {
	p.mount("mount /dev", "dev", "dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0755,size=64k,nr_inodes=64")
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		p.add("make /dev/"+name, unix.SYS_MKNODAT, atCwd, nsinit.Str("dev/"+name), nsinit.Int(unix.S_IFCHR|0o666), nsinit.Int(int(deviceNumbers[name])))
		p.add("open up /dev/"+name, unix.SYS_FCHMODAT, atCwd, nsinit.Str("dev/"+name), nsinit.Int(0o666))
	}
	p.terminals()
	p.mount("make /dev read-only", "", "dev", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NOEXEC, "")
}

// guestProc covers what a native sandbox covers, as far as gVisor has it.
func (p *planner) guestProc() {
	gone := []syscall.Errno{unix.ENOENT}
	for _, name := range []string{"kcore", "kmsg", "keys", "kallsyms", "sentry-meminfo"} {
		p.mount("empty /proc/"+name, "dev/null", "proc/"+name, "", unix.MS_BIND, "").Ignore = gone
	}
	// All of it: without Landlock the root inside could write what belongs to the
	// threads of init. Nobody needs to, see serveGuest.
	p.mount("restrict /proc", "", "proc", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|noDevSuid|unix.MS_NOEXEC, "")
	p.cover("proc/sys", noDevSuid|unix.MS_NOEXEC)
}

func (p *planner) detach(at string) {
	p.add("unmount /"+at, unix.SYS_UMOUNT2, nsinit.Str(at), nsinit.Int(unix.MNT_DETACH))
}

// guestCaps is what pid 1 of a guest starts with: what planGuest needs, and
// what it keeps in the end.
func guestCaps() []string {
	return []string{
		"CAP_SYS_ADMIN", "CAP_SYS_RESOURCE", "CAP_MKNOD", "CAP_SETPCAP",
		"CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_CHOWN", "CAP_FOWNER", "CAP_DAC_OVERRIDE",
	}
}
