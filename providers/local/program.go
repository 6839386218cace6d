//go:build linux

package local

import (
	"encoding/binary"
	"path"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/nsinit"
)

// A program collects the calls that init makes. Paths are relative to the new
// root, in which init stands, unless they start with a slash.
type program struct {
	calls  []nsinit.Call
	reg    int
	made   map[string]bool // directories
	temp   int             // register of clone; zero: none yet
	opened []nsinit.File
	there  func(at string) bool // reports what need not be made; nil: nothing

	skeleton []nsinit.Call // that make names of the root before it is mounted
	bones    int           // where in calls they belong; negative: nowhere, names are made as they come
	mounts   []string      // what was mounted on, in order

	boneOwner int // of directories of the skeleton
}

func newProgram() *program { return &program{made: map[string]bool{".": true}, bones: -1} }

// add appends a call and returns it for further settings; the pointer is good
// until the next add.
func (p *program) add(name string, nr int, args ...nsinit.Arg) *nsinit.Call {
	p.calls = append(p.calls, nsinit.Call{Name: name, Nr: uint16(nr), Args: args})
	return &p.calls[len(p.calls)-1]
}

// store makes the last call keep its result and returns where.
func (p *program) store() nsinit.Arg {
	p.reg++
	p.calls[len(p.calls)-1].Store = p.reg
	return nsinit.Reg(p.reg)
}

func (p *program) mount(name, source, target, fstype string, flags uintptr, data string) *nsinit.Call {
	p.mounts = append(p.mounts, target)
	d := nsinit.Int(0)
	if data != "" {
		d = nsinit.Str(data)
	}
	return p.add(name, unix.SYS_MOUNT, nsinit.Str(source), nsinit.Str(target), nsinit.Str(fstype), nsinit.Int(int(flags)), d)
}

var atCwd = nsinit.Int(unix.AT_FDCWD)

// mkdir makes dir and what is missing above it.
func (p *program) mkdir(dir string, mode int) {
	if p.made[dir] || p.there != nil && p.there(dir) {
		return
	}
	if parent := path.Dir(dir); parent != "/" {
		p.mkdir(parent, 0o755)
	}
	p.made[dir] = true
	p.early(dir, func() {
		p.add("make /"+dir, unix.SYS_MKDIRAT, atCwd, nsinit.Str(dir), nsinit.Int(mode)).Ignore = []syscall.Errno{unix.EEXIST}
		if p.boneOwner != 0 && p.isBone(dir) {
			p.add("give away /"+dir, unix.SYS_FCHOWNAT, atCwd, nsinit.Str(dir), nsinit.Int(p.boneOwner), nsinit.Int(p.boneOwner), nsinit.Int(unix.AT_SYMLINK_NOFOLLOW))
		}
	})
}

func (p *program) symlink(link, at string) {
	p.mkdir(path.Dir(at), 0o755)
	p.early(at, func() { p.add("link /"+at, unix.SYS_SYMLINKAT, nsinit.Str(link), atCwd, nsinit.Str(at)) })
}

func (p *program) writeFile(f textFile) {
	p.mkdir(path.Dir(f.path), 0o755)
	p.early(f.path, func() { p.write(f.path, unix.O_CREAT|unix.O_EXCL, f.text) })
}

// write puts text into a file in one write, as files of procfs want it.
func (p *program) write(file string, flags int, text string) {
	p.add("open /"+file, unix.SYS_OPENAT, atCwd, nsinit.Str(file), nsinit.Int(flags|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC), nsinit.Int(0o644))
	fd := p.store()
	p.add("write /"+file, unix.SYS_WRITE, fd, nsinit.Bytes([]byte(text)), nsinit.Int(len(text)))
	p.close(fd)
}

func (p *program) close(fd nsinit.Arg) { p.add("close", unix.SYS_CLOSE, fd) }

// target makes an empty file or directory to mount on.
func (p *program) target(at string, dir bool) {
	if dir {
		p.mkdir(at, 0o755)
		return
	}
	p.mkdir(path.Dir(at), 0o755)
	if p.there != nil && p.there(at) {
		return
	}
	p.early(at, func() {
		p.add("make /"+at, unix.SYS_MKNODAT, atCwd, nsinit.Str(at), nsinit.Int(unix.S_IFREG|0o444), nsinit.Int(0))
	})
}

// beginSkeleton says that from here on names of the root are made where the
// program is now, in the empty directory that will lie above its layers, however
// much later they are asked for. Only what is below a mount is made when its turn
// comes. So no path of the construction goes through content of a layer.
func (p *program) beginSkeleton() {
	p.bones = len(p.calls)
}

// early adds the calls of f, which make the name at.
func (p *program) early(at string, f func()) {
	from := len(p.calls)
	f()
	if !p.isBone(at) {
		return
	}
	p.skeleton = append(p.skeleton, p.calls[from:]...)
	p.calls = p.calls[:from]
}

// isBone reports whether the name at belongs to the skeleton.
func (p *program) isBone(at string) bool {
	return p.bones >= 0 && !slices.ContainsFunc(p.mounts, func(m string) bool { return at != m && within(at, m) })
}

// join puts the skeleton where it belongs.
func (p *program) join() {
	if p.bones >= 0 {
		p.calls = slices.Insert(p.calls, p.bones, p.skeleton...)
	}
}

// keepOpen opens the directory at and leaves it to the runtime under a name.
func (p *program) keepOpen(name, at string) {
	p.add("open /"+at, unix.SYS_OPENAT, atCwd, nsinit.Str(at), nsinit.Int(unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC), nsinit.Int(0))
	p.store()
	p.opened = append(p.opened, nsinit.File{Name: name, FD: nsinit.Opened(p.reg)})
}

// clone makes a detached copy of the tree at path, which is not followed when
// it is a link, and returns its descriptor.
func (p *program) clone(name, path string) nsinit.Arg {
	p.add("open "+name, unix.SYS_OPENAT, atCwd, nsinit.Str(path), nsinit.Int(unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC), nsinit.Int(0))
	// Always the same register: there may be many sources, and not so many registers.
	if p.temp == 0 {
		p.reg++
		p.temp = p.reg
	}
	p.calls[len(p.calls)-1].Store = p.temp
	source := nsinit.Reg(p.temp)
	p.add("copy the mount of "+name, unix.SYS_OPEN_TREE, source, nsinit.Str(""), nsinit.Int(openTreeFlags))
	tree := p.store()
	p.close(source)
	return tree
}

const openTreeFlags = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH | unix.AT_RECURSIVE

// restrict sets flags on every mount of a detached tree.
func (p *program) restrict(name string, tree nsinit.Arg, attr uint64) {
	a := mountAttr(attr)
	p.add("restrict "+name, unix.SYS_MOUNT_SETATTR, tree, nsinit.Str(""), nsinit.Int(unix.AT_EMPTY_PATH|unix.AT_RECURSIVE), nsinit.Bytes(a), nsinit.Int(len(a)))
}

// attach puts a detached tree where it is to be seen.
func (p *program) attach(name string, tree nsinit.Arg, at string) {
	p.mounts = append(p.mounts, at)
	p.add("attach "+name, unix.SYS_MOVE_MOUNT, tree, nsinit.Str(""), atCwd, nsinit.Str(at), nsinit.Int(unix.MOVE_MOUNT_F_EMPTY_PATH))
	p.close(tree)
}

// cover makes what is at a path of the new root read-only in place.
func (p *program) cover(at string, flags uintptr) {
	p.mount("cover /"+at, at, at, "", unix.MS_BIND|unix.MS_REC, "")
	p.mount("make /"+at+" read-only", "", at, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|flags, "")
}

func (p *program) prctl(name string, args ...int) *nsinit.Call {
	a := make([]nsinit.Arg, len(args))
	for i, n := range args {
		a[i] = nsinit.Int(n)
	}
	return p.add(name, unix.SYS_PRCTL, a...)
}

// mountAttr is struct mount_attr of mount_setattr(2): set flags, private.
func mountAttr(set uint64) []byte {
	var a unix.MountAttr
	a.Attr_set = set
	a.Propagation = unix.MS_PRIVATE
	return append([]byte(nil), (*[unsafe.Sizeof(a)]byte)(unsafe.Pointer(&a))[:]...)
}

// capData is the argument of capset(2): the same set effective and permitted,
// nothing inheritable.
func capData(caps uint64) (header, data []byte) {
	header = binary.NativeEndian.AppendUint32(nil, unix.LINUX_CAPABILITY_VERSION_3)
	header = binary.NativeEndian.AppendUint32(header, 0)
	for _, half := range []uint32{uint32(caps), uint32(caps >> 32)} {
		data = binary.NativeEndian.AppendUint32(data, half)
		data = binary.NativeEndian.AppendUint32(data, half)
		data = binary.NativeEndian.AppendUint32(data, 0)
	}
	return header, data
}
