//go:build linux

package local

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/nsinit"
)

const (
	roFlags  = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	devFlags = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC

	noDevSuid = unix.MS_NOSUID | unix.MS_NODEV
)

// A planner turns a launchSpec into the program of its init. The order of the
// steps is the order of the construction; what it depends on is said at each.
type planner struct {
	*program
	s       *launchSpec
	host    *probeResult
	trees   treeMaker
	sources map[string]nsinit.Arg // of view entries, by target
	guest   bool                  // the calls are for gVisor's kernel
}

// A treeMaker makes a detached copy of a tree of the host in the client, where
// the client may, and returns the number under which init is sent it. Where it
// reports false, init makes the copy itself.
type treeMaker func(source string, attr uint64, whose owners) (number int, ok bool, err error)

// plan returns the calls that build the sandbox of s, in which exposed is shown
// beside what every sandbox shows, and what stays open after them.
func plan(s *launchSpec, host *probeResult, exposed []viewEntry, trees treeMaker) (*program, error) {
	if s.gvisor != nil {
		return planGVisor(s, host, exposed, trees)
	}
	p := &planner{program: newProgram(), s: s, host: host, trees: trees, sources: map[string]nsinit.Arg{}}
	view := slices.Concat(s.root.view(), exposed)

	p.begin()
	if err := p.openSources(view); err != nil {
		return nil, err
	}
	for _, stack := range append(p.rootStacks(), p.files()) {
		if err := p.openStack(stack); err != nil {
			return nil, err
		}
	}
	if s.mapping.manyUsers() {
		// Not earlier: only as the user outside may init enter its directories.
		p.becomeRoot()
	}
	p.newRoot()
	p.scratch()
	p.systemFiles(view)
	p.proc()
	p.dev(view)
	p.artifacts()
	p.volumes()
	p.network()
	p.enter()
	p.limits()
	p.lock()
	p.join()
	return p.program, nil
}

// hostName is that of every sandbox.
const hostName = "sandbox"

func (p *planner) begin() {
	p.add("set the file mode mask", unix.SYS_UMASK, nsinit.Int(0o022))
	// Nothing that is mounted from here on shows outside, and the reverse.
	p.mount("make mounts private", "", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
}

func (p *planner) becomeRoot() {
	p.add("drop supplementary groups", unix.SYS_SETGROUPS, nsinit.Int(0), nsinit.Int(0))
	p.add("set the group", unix.SYS_SETRESGID, nsinit.Int(0), nsinit.Int(0), nsinit.Int(0))
	p.add("set the user", unix.SYS_SETRESUID, nsinit.Int(0), nsinit.Int(0), nsinit.Int(0))
}

// openSources takes hold of everything of the host that will be shown, before
// the first mount can cover any of it.
func (p *planner) openSources(view []viewEntry) error {
	for _, e := range view {
		if e.source == "" || p.inHostStack(e.target) {
			continue
		}
		attr := uint64(roFlags)
		if e.device {
			attr = devFlags
		}
		if err := p.openSource(e.target, e.source, attr, e.device); err != nil {
			return err
		}
	}
	for _, b := range p.s.binds {
		attr := uint64(roFlags)
		if !b.exec {
			attr |= unix.MOUNT_ATTR_NOEXEC
		}
		if err := p.openSource(b.target, b.source, attr, false); err != nil {
			return err
		}
	}
	if dir := p.s.scratchDir; dir != "" {
		if err := p.openSource(scratchAt, dir, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, false); err != nil {
			return err
		}
	}
	for _, v := range p.s.volumes {
		if err := p.openOwned(v.target, v.source, v.attr(), ownersStored); err != nil {
			return err
		}
	}
	return nil
}

func (p *planner) openSource(target, source string, attr uint64, device bool) error {
	return p.open(target, source, attr, ownersHost, device)
}

// openOwned takes hold of a directory whose files are shown with other owners.
func (p *planner) openOwned(target, source string, attr uint64, whose owners) error {
	return p.open(target, source, attr, whose, false)
}

func (p *planner) open(target, source string, attr uint64, whose owners, device bool) error {
	if p.s.mapping.kind != mapBlock {
		whose = ownersHost
	}
	n, ok, err := p.trees(source, attr, whose)
	if err != nil {
		return err
	}
	if ok {
		p.sources[target] = nsinit.Sent(n)
		if device {
			p.checkDevice(source, p.sources[target])
		}
		return nil
	}
	tree := p.clone(source, source)
	if device {
		p.checkDevice(source, tree)
	}
	if p.host.mountSetattr {
		p.restrict(source, tree, attr)
	}
	p.sources[target] = tree
	return nil
}

// checkDevice makes sure that a device of the host is the one of that name.
func (p *planner) checkDevice(source string, fd nsinit.Arg) {
	var st unix.Stat_t
	c := p.add("check "+source, unix.SYS_FSTAT, fd, nsinit.Out(int(unsafe.Sizeof(st))))
	c.ExpectAt = int(unsafe.Offsetof(st.Rdev))
	c.Expect = binary.NativeEndian.AppendUint64(nil, deviceNumbers[path.Base(source)])
}

// deviceNumbers are those of Documentation/admin-guide/devices.txt.
var deviceNumbers = map[string]uint64{
	"null": unix.Mkdev(1, 3), "zero": unix.Mkdev(1, 5), "full": unix.Mkdev(1, 7),
	"random": unix.Mkdev(1, 8), "urandom": unix.Mkdev(1, 9), "tty": unix.Mkdev(5, 0),
}

// newRoot mounts an empty root and stands in it.
func (p *planner) newRoot() {
	p.mount("mount the new root", "sandbox", p.host.base, "tmpfs", noDevSuid, "mode=0755,size=4m,nr_inodes=4096")
	p.add("enter the new root", unix.SYS_CHDIR, nsinit.Str(p.host.base))
}

// scratchAt is where the scratch is mounted, only to take from it what is seen
// elsewhere. It will be /proc.
const scratchAt = "proc"

// scratch makes the writable places: directories of one tmpfs or of one
// directory on disk, so that they share its limit.
func (p *planner) scratch() {
	s := p.s
	p.mkdir(scratchAt, 0o555)
	if s.scratchDir == "" {
		p.mount("mount the scratch", "scratch", scratchAt, "tmpfs", noDevSuid,
			fmt.Sprintf("mode=0755,size=%d,nr_inodes=%d", s.scratchBytes, scratchInodes(s.scratchBytes)))
	} else {
		p.attach("the scratch", p.sources[scratchAt], scratchAt)
		if !p.host.mountSetattr {
			p.mount("restrict the scratch", "", scratchAt, "", unix.MS_REMOUNT|unix.MS_BIND|noDevSuid, "")
		}
		p.keepOpen(fdScratch, scratchAt)
	}
	files := p.files()
	p.makeStack(files)
	p.enterRoot()
	p.place("tmp", 0o1777, 0)
	p.place("var/tmp", 0o1777, 0)
	p.place("home/user", 0o755, userID)
	if s.mapping.manyUsers() {
		p.place("root", 0o700, 0)
	}
	p.places()
	// Not among the files that snapshots keep: it says what runs now.
	p.placeIn(scratchAt, "run", 0o755, 0)
	p.keepOpen(fdFiles, files.upper())
	p.add("hide the scratch", unix.SYS_UMOUNT2, nsinit.Str(scratchAt), nsinit.Int(unix.MNT_DETACH))
}

// files is the stack of the places that are kept by snapshots.
func (p *planner) files() *stack { return &stack{name: "files", layers: p.s.layers} }

// place makes one directory of the files of the sandbox, unless a layer has it,
// and shows it at the path at.
func (p *planner) place(at string, mode, owner int) {
	if slices.Contains(p.s.kept, "/"+at) {
		p.mkdir(at, 0o755)
		p.mount("show /"+at, p.files().tree()+"/"+placeName(at), at, "", unix.MS_BIND, "")
		return
	}
	p.placeIn(p.files().tree(), at, mode, owner)
}

// placeName is the name of a place, a relative path, among the files.
func placeName(at string) string {
	name := strings.NewReplacer("%", "%25", "/", "%2F").Replace(at)
	if len(name) > 255 {
		sum := sha256.Sum256([]byte(at))
		return "%" + hex.EncodeToString(sum[:])
	}
	return name
}

// placeIn makes a directory for the path at in dir and shows it there.
func (p *planner) placeIn(dir, at string, mode, owner int) {
	inner := dir + "/" + placeName(at)
	p.add("make /"+at, unix.SYS_MKDIRAT, atCwd, nsinit.Str(inner), nsinit.Int(mode))
	if mode&0o1000 != 0 || mode&0o022 != 0 { // mkdir obeys the mask
		p.add("open up /"+at, unix.SYS_FCHMODAT, atCwd, nsinit.Str(inner), nsinit.Int(mode))
	}
	if owner != 0 && p.s.mapping.manyUsers() {
		p.add("give away /"+at, unix.SYS_FCHOWNAT, atCwd, nsinit.Str(inner), nsinit.Int(owner), nsinit.Int(owner), nsinit.Int(unix.AT_SYMLINK_NOFOLLOW))
	}
	p.mkdir(at, 0o755)
	p.mount("show /"+at, inner, at, "", unix.MS_BIND, "")
}

// systemFiles attaches what is shown of the host and writes what is not.
func (p *planner) systemFiles(view []viewEntry) {
	for _, f := range etcFiles(p.s) {
		p.writeFile(f)
	}
	p.symlink("/proc/self/mounts", "etc/mtab")
	for _, e := range view {
		switch {
		case e.device:
		case e.source == "":
			p.symlink(e.link, e.target)
		case p.inHostStack(e.target): // enterRoot has shown it
		default:
			p.show(e.target, e.dir)
		}
	}
	cpus := p.s.cpus
	if cpus <= 0 {
		cpus = p.host.cpus
	}
	for _, f := range cpuFiles(cpus) {
		p.writeFile(f)
	}
}

// show attaches a source that openSources holds.
func (p *planner) show(target string, dir bool) {
	p.target(target, dir)
	p.attach("/"+target, p.sources[target], target)
	if !p.host.mountSetattr {
		// Before Linux 5.12: one remount per mount of the tree.
		p.add("restrict /"+target, nsinit.RemountTree, nsinit.Str(path.Join(p.host.base, target)))
	}
}

// proc mounts a procfs of the new pid namespace. It needs the old one to be
// visible still, so it comes before pivot_root.
func (p *planner) proc() {
	p.mount(stepProc, "proc", "proc", "proc", noDevSuid|unix.MS_NOEXEC, "")
	// While this process may still write there, and before /proc/sys is covered.
	p.write("proc/sys/user/max_user_namespaces", 0, "0")
	// These are charged to the user outside as well, who has a few hundred of
	// them for everything.
	for _, limit := range userLimits() {
		p.write("proc/sys/user/"+limit.name, 0, limit.value)
	}
}

// userLimits are those of user_namespaces(7) and inotify(7) that this kernel
// has.
var userLimits = sync.OnceValue(func() []userLimit {
	return slices.DeleteFunc([]userLimit{
		{"max_inotify_instances", "16"}, {"max_inotify_watches", "8192"},
	}, func(l userLimit) bool {
		_, err := os.Lstat("/proc/sys/user/" + l.name)
		return err != nil
	})
})

type userLimit struct{ name, value string }

// dev makes /dev, and then covers parts of /proc with its null device.
func (p *planner) dev(view []viewEntry) {
	p.mkdir("dev", 0o755)
	p.mount("mount /dev", "dev", "dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0755,size=64k,nr_inodes=64")
	for _, e := range view {
		if e.device {
			p.target(e.target, false)
			p.attach("/"+e.target, p.sources[e.target], e.target)
		}
	}
	p.terminals()

	for _, name := range procMasks() {
		at := "proc/" + name
		if fi, err := os.Lstat("/" + at); err == nil && fi.IsDir() {
			p.mount("empty /"+at, "none", at, "tmpfs", noDevSuid|unix.MS_NOEXEC|unix.MS_RDONLY, "size=4k,nr_inodes=2,mode=0555")
			continue
		}
		p.mount("empty /"+at, "dev/null", at, "", unix.MS_BIND, "")
	}
	for _, name := range procCovers() {
		p.cover("proc/"+name, noDevSuid|unix.MS_NOEXEC)
	}
	// Init's own entries belong to the root inside, who could make it the first
	// to die when memory is short. It lives as long as the mount.
	p.cover("proc/1", noDevSuid|unix.MS_NOEXEC)
	// Otherwise it is one more place to fill.
	p.mount("make /dev read-only", "", "dev", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NOEXEC, "")
}

// maxTerminals bounds those of one sandbox: the machine has a few thousand for
// all of them together.
const maxTerminals = 256

// terminals makes what of /dev is not a device node.
func (p *planner) terminals() {
	p.mkdir("dev/pts", 0o755)
	options := "newinstance,ptmxmode=0666,mode=0620,max=" + strconv.Itoa(maxTerminals)
	if p.guest { // gVisor takes the mode for that of the directory, and has no limit
		options = "newinstance,ptmxmode=0666,mode=0755"
	}
	p.mount("mount /dev/pts", "devpts", "dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, options)
	p.symlink("pts/ptmx", "dev/ptmx")
	p.symlink("/proc/self/fd", "dev/fd")
	for i, name := range []string{"stdin", "stdout", "stderr"} {
		p.symlink("/proc/self/fd/"+strconv.Itoa(i), "dev/"+name)
	}
	p.mkdir("dev/shm", 0o1777)
	shm := cmp.Or(p.s.shmBytes, p.s.scratchBytes/4)
	p.mount("mount /dev/shm", "shm", "dev/shm", "tmpfs", noDevSuid,
		fmt.Sprintf("mode=1777,size=%d,nr_inodes=%d", shm, max(1024, shm>>14)))
}

// artifactRoot is where binds lie inside. It is a mount of its own, because a
// user that owns /run could move a plain directory out of the way.
const artifactRoot = "/run/sandbox"

func (p *planner) artifacts() {
	root := artifactRoot[1:]
	p.mkdir(root, 0o755)
	p.mount("mount "+artifactRoot, "artifacts", root, "tmpfs", noDevSuid, "mode=0755,size=64k,nr_inodes=256")
	for _, b := range p.s.binds {
		p.target(b.target[1:], b.dir)
		p.attach(b.target, p.sources[b.target], b.target[1:])
		if !p.host.mountSetattr {
			p.add("restrict "+b.target, nsinit.RemountTree, nsinit.Str(path.Join(p.host.base, b.target)))
		}
	}
	p.mount("make "+artifactRoot+" read-only", "", root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|noDevSuid, "")
}

func (p *planner) network() {
	if (p.s.network == netLoopback || p.s.network == netList) && p.s.cradle == nil {
		p.loopback()
	}
	if p.s.network == netList && p.s.gvisor == nil { // else see guestNetwork
		p.allow(p.s.allow)
	}
	p.add("set the host name", unix.SYS_SETHOSTNAME, nsinit.Str(hostName), nsinit.Int(len(hostName)))
}

func (p *program) loopback() {
	p.add("open a socket for the loopback device", unix.SYS_SOCKET, nsinit.Int(unix.AF_INET), nsinit.Int(unix.SOCK_DGRAM|unix.SOCK_CLOEXEC), nsinit.Int(0))
	fd := p.store()
	p.add(stepLoopback, unix.SYS_IOCTL, fd, nsinit.Int(unix.SIOCSIFFLAGS), nsinit.Bytes(ifreqUp("lo")))
	p.close(fd)
}

// ifreqUp is struct ifreq of netdevice(7) that brings a device up.
func ifreqUp(device string) []byte {
	b := make([]byte, 40)
	copy(b, device)
	binary.NativeEndian.PutUint16(b[16:], unix.IFF_UP|unix.IFF_RUNNING)
	return b
}

// enter makes the new root read-only and the only one there is.
func (p *planner) enter() {
	if !p.s.root.writable {
		p.mount("make / read-only", "", ".", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|noDevSuid, "")
	}
	p.add("enter the new root", unix.SYS_PIVOT_ROOT, nsinit.Str("."), nsinit.Str("."))
	p.add("leave the old root", unix.SYS_UMOUNT2, nsinit.Str("."), nsinit.Int(unix.MNT_DETACH))
	p.add("go to /", unix.SYS_CHDIR, nsinit.Str("/"))
	c := p.add("check the working directory", unix.SYS_GETCWD, nsinit.Out(64), nsinit.Int(64))
	c.Expect = []byte("/\x00") // "(unreachable)…" when the old root is still there
}

// limits lowers what a process may use. Only lowering is sure to be allowed.
func (p *planner) limits() {
	fsize := p.s.scratchBytes
	if p.s.scratchDir == "" {
		fsize += 1 << 20 // a full scratch must say ENOSPC
	}
	p.rlimit(unix.RLIMIT_CORE, 0)
	p.rlimit(unix.RLIMIT_NOFILE, 65536)
	p.rlimit(unix.RLIMIT_MEMLOCK, 8<<20)
	p.rlimit(unix.RLIMIT_MSGQUEUE, 800<<10)
	p.rlimit(unix.RLIMIT_SIGPENDING, 4096)
	p.rlimit(unix.RLIMIT_RTPRIO, 0)
	p.rlimit(unix.RLIMIT_NICE, 0)
	if !p.s.writesVolumes() {
		p.rlimit(unix.RLIMIT_FSIZE, uint64(fsize))
	}
	if p.s.affinity > 0 {
		p.add("choose processors", unix.SYS_SCHED_SETAFFINITY, nsinit.Int(0), nsinit.Int(len(affinityMask{})), nsinit.Bytes(chooseCPUs(p.s.affinity))).All = true
	}
	if p.s.nprocLimit > 0 {
		p.rlimit(unix.RLIMIT_NPROC, uint64(p.s.nprocLimit))
	}
}

func (p *planner) rlimit(resource int, hard uint64) {
	var own unix.Rlimit
	if err := unix.Getrlimit(resource, &own); err != nil {
		return
	}
	own.Max = min(own.Max, hard)
	own.Cur = min(own.Cur, own.Max)
	b := binary.NativeEndian.AppendUint64(nil, own.Cur)
	b = binary.NativeEndian.AppendUint64(b, own.Max)
	p.add("set a resource limit", unix.SYS_PRLIMIT64, nsinit.Int(0), nsinit.Int(resource), nsinit.Bytes(b), nsinit.Int(0))
}

// lock gives up what is left of privileges, in every thread.
func (p *planner) lock() {
	p.add("close inherited descriptors", nsinit.CloseInherited)
	p.add("take signals from the runtime", nsinit.Deafen)
	first := len(p.calls)
	if p.s.mapping.manyUsers() {
		p.becomeRoot()
	}
	p.keyring()
	// After init was moved to its control groups, so that their paths are hidden.
	p.add("enter a cgroup namespace", unix.SYS_UNSHARE, nsinit.Int(unix.CLONE_NEWCGROUP))
	p.prctl("set no_new_privs", unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	p.prctl("clear ambient capabilities", unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	p.bound()
	header, data := capData(p.s.initCaps())
	p.add("set capabilities", unix.SYS_CAPSET, nsinit.Bytes(header), nsinit.Bytes(data))
	for i := first; i < len(p.calls); i++ {
		p.calls[i].All = true
	}
	p.add("set the process name", unix.SYS_PRCTL, nsinit.Int(unix.PR_SET_NAME), nsinit.Str("sandbox-init"))
	p.prctl("become undumpable", unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	p.add(stepSeccomp, unix.SYS_SECCOMP, nsinit.Int(unix.SECCOMP_SET_MODE_FILTER), nsinit.Int(unix.SECCOMP_FILTER_FLAG_TSYNC), nsinit.Filter(seccompFilter(p.s.debug))).Zero = true
}

// bound empties the bounding set, but for what root is to have who builds.
func (p *planner) bound() {
	var keep uint64
	if p.s.build && p.s.mapping.manyUsers() {
		keep = buildCaps
	}
	for first, c := 0, 0; c <= p.host.lastCap+1; c++ {
		if c <= p.host.lastCap && keep&(1<<c) == 0 {
			continue
		}
		if c > first {
			p.prctl("empty the bounding set", unix.PR_CAPBSET_DROP, first, 0, 0, 0).Count = c - first
		}
		first = c + 1
	}
}

// keyring gives init a session keyring.
func (p *planner) keyring() {
	// A keyring of our own in the place of the caller's. One name, so that the
	// threads share it: keys are counted. Without room for it the caller's stays
	// attached, which is harmless as long as the filter refuses keyctl.
	p.add("join a session keyring", unix.SYS_KEYCTL, nsinit.Int(unix.KEYCTL_JOIN_SESSION_KEYRING), nsinit.Str("sandbox")).Ignore =
		[]syscall.Errno{unix.ENOSYS, unix.EDQUOT}
}

// Steps that explain looks for.
const (
	stepClone    = "clone"
	stepMap      = "map ids"
	stepProc     = "mount /proc"
	stepLoopback = "bring the loopback device up"
	stepAddress  = "add an address"
	stepSeccomp  = "install the system call filter"
)
