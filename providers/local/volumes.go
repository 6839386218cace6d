//go:build linux

package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/nsinit"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Bounds of one request.
const (
	maxVolumes = 16
	maxPlaces  = 64
)

// volumesDir is the directory of the state directory that holds volumes.
const volumesDir = "volumes"

// volumeMode is that of the top of a volume: every user inside can make files
// there. Outside, the directory above it keeps others away.
const volumeMode = 0o777

// volume is a directory of the host inside the sandbox.
type volume struct {
	name     string // for the report
	source   string // absolute; its last element must not be a link
	target   string // absolute and clean, checked by checkPlaces
	readOnly bool
}

func (v volume) String() string {
	if v.readOnly {
		return v.name + " at " + v.target + ", read-only"
	}
	return v.name + " at " + v.target
}

// place is a directory or file of the scratch that is seen at a path of its own.
type place struct {
	target string // absolute and clean, checked by checkPlaces
	dir    bool
}

// scratchPlaces are the writable directories of every sandbox.
var scratchPlaces = []string{"/tmp", "/var/tmp", "/run", "/dev/shm", "/home/user", "/root"}

// checkPlaces refuses volumes and places where the sandbox has something of its
// own, and returns the places that have to be made.
func checkPlaces(r *providers.CreateRequest, expose []string) ([]place, error) {
	if len(r.Volumes) > maxVolumes {
		return nil, badOption(fmt.Sprintf("%d volumes; at most %d", len(r.Volumes), maxVolumes), "")
	}
	if len(r.Places) > maxPlaces {
		return nil, badOption(fmt.Sprintf("%d files and directories are put into the sandbox; at most %d", len(r.Places), maxPlaces), "put a directory that holds them")
	}
	taken := ownPaths(expose, r.Image != "" || r.Root.Dir != "")
	for i, v := range r.Volumes {
		if !isVolumeName(v.Name) {
			return nil, badOption(fmt.Sprintf("%q is not a name of a volume", clip(v.Name)), "use letters, digits and . _ -, a letter or digit first, at most 64")
		}
		if err := checkPlace("volume "+v.Name, v.Path, taken); err != nil {
			return nil, err
		}
		for _, w := range r.Volumes[:i] {
			if within(v.Path, w.Path) || within(w.Path, v.Path) {
				return nil, badOption("volumes "+w.Name+" and "+v.Name+" are at the same path or one lies in the other", "")
			}
		}
	}
	var out []place
	for _, p := range r.Places {
		inside := func(dir string) bool { return p.Path != dir && within(p.Path, dir) }
		if slices.ContainsFunc(scratchPlaces, inside) || slices.ContainsFunc(r.Volumes, func(v providers.Volume) bool { return within(p.Path, v.Path) }) {
			continue // it can be written there
		}
		if slices.ContainsFunc(out, func(q place) bool { return q.dir && (inside(q.target) || p.Dir && q.target == p.Path) }) {
			continue
		}
		if err := checkPlace("what is put", p.Path, taken); err != nil {
			return nil, err
		}
		for _, q := range out {
			if within(q.target, p.Path) || within(p.Path, q.target) {
				return nil, badOption("what is put at "+q.target+" and at "+p.Path+" is in each other's way", "name the outer one first, if it is a directory")
			}
		}
		out = append(out, place{p.Path, p.Dir})
	}
	return out, nil
}

func checkPlace(what, at string, taken []string) error {
	if !path.IsAbs(at) || path.Clean(at) != at || at == "/" || len(at) > 4000 || strings.ContainsRune(at, 0) {
		return badOption(fmt.Sprintf("%s at %q: not an absolute, clean path below /", what, clip(at)), "")
	}
	for _, own := range taken {
		if within(at, own) || within(own, at) {
			return badOption(what+" at "+at+": the sandbox has "+own+" of its own", "use a path of your own, /data say, or one below /home/user")
		}
	}
	for _, own := range scratchPlaces {
		if within(own, at) {
			return badOption(what+" at "+at+": the sandbox has "+own+" of its own", "use a path below it, or one like /data")
		}
	}
	return nil
}

// ownPaths is what every sandbox has and nothing may cover. A foreign tree may be
// covered.
func ownPaths(expose []string, foreign bool) []string {
	taken := append([]string{"/proc", "/sys", "/dev", "/etc/mtab", artifactRoot}, expose...)
	if !foreign {
		for _, e := range rootView() {
			taken = append(taken, "/"+e.target)
		}
	}
	for _, f := range etcFiles(&launchSpec{}) {
		taken = append(taken, "/"+f.path)
	}
	return taken
}

func isVolumeName(s string) bool {
	const letters, others = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", "._-"
	return s != "" && len(s) <= 64 && strings.Contains(letters, s[:1]) && strings.Trim(s, letters+others) == ""
}

// openVolumes makes volumes that are not there and says where they are.
func (b *builder) openVolumes() ([]volume, error) {
	if len(b.o.Volumes) == 0 {
		return nil, nil
	}
	dir, err := b.t.base.ensure(volumesDir)
	if err != nil {
		return nil, unsafeState(filepath.Join(b.t.path, volumesDir), err)
	}
	defer dir.close()
	var out []volume
	for _, v := range b.o.Volumes {
		if err := ensureVolume(dir, v.Name, b.o.mapping); err != nil {
			return nil, stateError("create sandbox", "make volume "+v.Name, err)
		}
		out = append(out, volume{v.Name, filepath.Join(b.t.path, volumesDir, v.Name), v.Path, v.ReadOnly})
	}
	return out, nil
}

// ensureVolume makes the volume name, unless it is there. It gets its name when
// it is complete.
func ensureVolume(dir *folder, name string, kind mapKind) error {
	if d, err := dir.sub(name); !errors.Is(err, fs.ErrNotExist) {
		d.close()
		return err
	}
	tmp := ".new-" + randomText(12)
	if err := dir.mkdir(tmp); err != nil {
		return err
	}
	d, err := dir.sub(tmp)
	if err == nil {
		if kind == mapBlock {
			err = unix.Fchown(d.fd(), volumeIDs+userID, volumeIDs+userID)
		}
		if err == nil {
			err = unix.Fchmod(d.fd(), volumeMode)
		}
		d.close()
	}
	if err == nil {
		err = unix.Renameat2(dir.fd(), tmp, dir.fd(), name, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		unix.Unlinkat(dir.fd(), tmp, unix.AT_REMOVEDIR)
		if err == unix.EEXIST { // somebody else was faster
			err = nil
		}
	}
	return err
}

// volumeIDs is where the ids begin that own the files of volumes of root's
// sandboxes: each sandbox has other ids, and they all have to see the same
// owners. No sandbox is mapped to them.
const volumeIDs = blockBase + (blockCount+1)*blockSize

// ownerNamespace returns a user namespace that maps owners of files to the ids of
// the sandbox of block.
func ownerNamespace(exe *executable, whose owners, block int) (*os.File, error) {
	ours, theirs, err := controlPair()
	if err != nil {
		return nil, err
	}
	defer ours.Close() // what waits for its program at the other end
	defer theirs.Close()
	null, err := devNull()
	if err != nil {
		return nil, err
	}
	proc, err := os.StartProcess("/proc/self/fd/"+strconv.Itoa(childExe), []string{"sandbox-ids"}, &os.ProcAttr{
		Env:   []string{nsinit.EnvSocket + "=" + strconv.Itoa(childControl), "GOMAXPROCS=1"},
		Files: []*os.File{null, null, null, childControl: theirs, childExe: exe.file},
		Sys:   &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_VFORK | unix.CLONE_VM, Setsid: true},
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = proc.Kill() // an error means that it has ended
		_, _ = proc.Wait()
	}()
	first := volumeIDs
	if whose == ownersSame {
		first = 0
	}
	text := fmt.Sprintf("%d %d %d\n", first, blockBase+block*blockSize, blockSize)
	for _, name := range []string{"uid_map", "gid_map"} {
		if err := writeProc(proc.Pid, name, text); err != nil {
			return nil, err
		}
	}
	return os.Open("/proc/" + strconv.Itoa(proc.Pid) + "/ns/user")
}

// ownedTree is a detached copy of a directory, whose files belong to the ids of
// the sandbox. Only root makes such copies; for others the user inside is the
// user outside.
func (l *launcher) ownedTree(source string, attr uint64, whose owners) (*os.File, error) {
	ids := l.ids[whose]
	if ids == nil {
		ns, err := ownerNamespace(l.exe, whose, l.s.mapping.block)
		if err != nil {
			return nil, errdefs.Wrap("E2000", "create sandbox", "map the owners of "+source, err)
		}
		if l.ids == nil {
			l.ids = map[owners]*os.File{}
		}
		ids, l.ids[whose] = ns, ns
	}
	fd, err := unix.Open(source, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errdefs.Wrap("E2000", "create sandbox", "open "+source, err)
	}
	defer unix.Close(fd)
	tree, err := unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err == nil {
		f := os.NewFile(uintptr(tree), source)
		err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
			Attr_set: attr | unix.MOUNT_ATTR_IDMAP, Propagation: unix.MS_PRIVATE, Userns_fd: uint64(ids.Fd()),
		})
		if err == nil {
			return f, nil
		}
		f.Close()
	}
	return nil, &errdefs.Error{
		Code: "E8004", Op: "create sandbox", Err: err,
		Message:    "this kernel, or the file system of " + source + ", cannot map the owners of files",
		Suggestion: "use Linux 5.12 or later and a state directory on ext4, xfs, btrfs or tmpfs (SANDBOX_STATE_DIR), or run as an ordinary user",
	}
}

// volumes shows the volumes.
func (p *planner) volumes() {
	for _, v := range p.s.volumes {
		if root, at, ok := p.foreign(v.target); ok {
			p.attachTo(v.target, p.sources[v.target], p.descend(root, at, placeOwner(root)))
			continue
		}
		p.way(v.target[1:])
		p.target(v.target[1:], true)
		p.attach(v.target, p.sources[v.target], v.target[1:])
		if !p.host.mountSetattr {
			p.mount("restrict "+v.target, "", v.target[1:], "", unix.MS_REMOUNT|unix.MS_BIND|v.flags(), "")
		}
	}
}

func (v volume) flags() uintptr {
	if v.readOnly {
		return noDevSuid | unix.MS_RDONLY
	}
	return noDevSuid
}

func (v volume) attr() uint64 {
	if v.readOnly {
		return roFlags
	}
	return unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
}

// way makes the directories above at, which belong to the user where they lie in
// its home.
func (p *planner) way(at string) {
	const home = "home/user/"
	rest, ok := strings.CutPrefix(path.Dir(at), home)
	if !ok {
		return
	}
	dir := strings.TrimSuffix(home, "/")
	for name := range strings.SplitSeq(rest, "/") {
		dir += "/" + name
		if p.made[dir] {
			continue
		}
		p.mkdir(dir, 0o755)
		if p.s.mapping.manyUsers() {
			p.add("give away /"+dir, unix.SYS_FCHOWNAT, atCwd, nsinit.Str(dir), nsinit.Int(userID), nsinit.Int(userID), nsinit.Int(unix.AT_SYMLINK_NOFOLLOW))
		}
	}
}

// places makes what is to be written outside of the usual places. It is called
// while the scratch can be reached.
func (p *planner) places() {
	owner := userID
	if p.s.placesOfRoot {
		owner = 0
	}
	for _, x := range p.s.places {
		if x.dir {
			p.place(x.target[1:], 0o755, owner)
			continue
		}
		inner := p.files().tree() + "/" + placeName(x.target[1:])
		if slices.Contains(p.s.kept, x.target) {
			p.target(x.target[1:], false)
			p.mount("show "+x.target, inner, x.target[1:], "", unix.MS_BIND, "")
			continue
		}
		p.add("make "+x.target, unix.SYS_MKNODAT, atCwd, nsinit.Str(inner), nsinit.Int(unix.S_IFREG|0o644), nsinit.Int(0))
		if owner != 0 && p.s.mapping.manyUsers() {
			p.add("give away "+x.target, unix.SYS_FCHOWNAT, atCwd, nsinit.Str(inner), nsinit.Int(owner), nsinit.Int(owner), nsinit.Int(unix.AT_SYMLINK_NOFOLLOW))
		}
		p.target(x.target[1:], false)
		p.mount("show "+x.target, inner, x.target[1:], "", unix.MS_BIND, "")
	}
}

// writable are the paths that can be written beside those of every sandbox.
func (s *launchSpec) writable() []string {
	var out []string
	if s.root.writable {
		out = append(out, "/")
	}
	for _, v := range s.volumes {
		if !v.readOnly {
			out = append(out, v.target)
		}
	}
	for _, p := range s.places {
		out = append(out, p.target)
	}
	return out
}

// writesVolumes reports whether a volume can be written, which the limit of the
// scratch does not bound.
func (s *launchSpec) writesVolumes() bool {
	return slices.ContainsFunc(s.volumes, func(v volume) bool { return !v.readOnly })
}
