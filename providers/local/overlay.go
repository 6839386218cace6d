//go:build linux

package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/nsinit"
)

// A stack is one tree made of directories of the host, which stay as they are,
// below a directory of the scratch that takes what is written: an overlay
// (Documentation/filesystems/overlayfs.rst) that init mounts in its own user
// namespace. Without layers it is that directory alone and nothing is mounted.
//
// The planner makes one in two steps. openStack takes hold of the layers, with
// all other sources, before anything is mounted; makeStack, called while the
// scratch can be reached, mounts. Whoever wants the tree elsewhere binds it or
// parts of it; whoever wants it read-only remounts that bind.
//
// What is below a layer is what its directory holds: mounts below it are not
// part of it, and a layer of the host with mounts of its own below is refused to
// users that are not root (EINVAL).
type stack struct {
	name   string // of its directory on the scratch; letters
	layers []stackLayer
	above  string // directory that takes what is written; empty: one of its own
}

// maxStack bounds the layers of one stack. Their names in the options of the
// mount are numbers, so that even the 500 that the kernel takes would be below
// the page that options can have.
const maxStack = 120

// A stackLayer is one directory of the host. The first layer of a stack is the
// uppermost.
type stackLayer struct {
	source string // absolute; its last element must not be a link
	owners owners
}

// owners says whose files of the host are whose inside, where the sandbox has a
// block of ids. With other mappings they are always shown as the user namespace
// shows them.
type owners int

const (
	ownersHost   owners = iota // as the host has them: what the sandbox does not map belongs to nobody
	ownersStored               // volumes and layers of the store: ids from volumeIDs are those inside
	ownersSame                 // ids of the host are the same ids inside
)

// dir is the directory of the stack on the scratch, which is mounted at /proc
// meanwhile.
func (s *stack) dir() string { return scratchAt + "/" + s.name }

// upper takes what is written. Only init may touch it, and only while nothing
// inside runs.
func (s *stack) upper() string { return cmp.Or(s.above, s.dir()+"/upper") }

// tree is where the stack can be seen as long as the scratch can be reached.
func (s *stack) tree() string {
	if len(s.layers) == 0 {
		return s.upper()
	}
	return s.dir() + "/tree"
}

func (s *stack) layerName(i int) string { return s.name + " " + strconv.Itoa(i) }

// openStack takes hold of the layers of s.
func (p *planner) openStack(s *stack) error {
	if len(s.layers) > maxStack {
		return badOption(fmt.Sprintf("%d layers of files; at most %d", len(s.layers), maxStack), "")
	}
	for i, l := range s.layers {
		if err := p.openOwned(s.layerName(i), l.source, roFlags, l.owners); err != nil {
			return err
		}
	}
	return nil
}

// makeStack makes the tree of s.
func (p *planner) makeStack(s *stack) {
	p.mkdir(s.dir(), 0o755)
	p.mkdir(s.upper(), 0o755)
	if len(s.layers) == 0 {
		return
	}
	// The mark of a directory that hides what is below it is such an attribute.
	p.add(stepAttribute, unix.SYS_SETXATTR, nsinit.Str(s.upper()), nsinit.Str("user.sandbox"), nsinit.Str("y"), nsinit.Int(1), nsinit.Int(0))
	p.add("remove it", unix.SYS_REMOVEXATTR, nsinit.Str(s.upper()), nsinit.Str("user.sandbox"))
	p.mkdir(s.dir()+"/work", 0o700)
	p.mkdir(s.tree(), 0o755)
	var lower []string
	for i := range s.layers {
		at := s.dir() + "/" + strconv.Itoa(i)
		p.mkdir(at, 0o755)
		p.attach("layer "+s.layerName(i), p.sources[s.layerName(i)], at)
		lower = append(lower, strconv.Itoa(i))
	}
	p.add("enter "+s.dir(), unix.SYS_CHDIR, nsinit.Str(s.dir()))
	p.mount(stepOverlay, s.name, "tree", "overlay", noDevSuid, "lowerdir="+strings.Join(lower, ":")+",upperdir="+strings.Repeat("../", strings.Count(s.dir(), "/")+1)+s.upper()+",workdir=work,userxattr")
	p.add("leave "+s.dir(), unix.SYS_CHDIR, nsinit.Str("../.."))
	for i := range s.layers { // the overlay has copies of these mounts
		p.add("hide a layer", unix.SYS_UMOUNT2, nsinit.Str(s.dir()+"/"+strconv.Itoa(i)), nsinit.Int(unix.MNT_DETACH))
	}
}

// descend opens the directory at, which is below the directory root, and makes
// what is missing on the way; what it makes belongs to owner. No link is
// followed: a link where a directory should be fails the construction. It is
// for trees whose content is foreign, while the host can still be reached.
// The result has to be closed.
func (p *planner) descend(root, at string, owner int) nsinit.Arg {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	p.add("open /"+root, unix.SYS_OPENAT, atCwd, nsinit.Str(root), nsinit.Int(flags), nsinit.Int(0))
	dir := p.store()
	seen := root
	for name := range strings.SplitSeq(path.Clean(at), "/") {
		seen += "/" + name
		p.add("make /"+seen, unix.SYS_MKDIRAT, dir, nsinit.Str(name), nsinit.Int(0o755)).Ignore = []syscall.Errno{unix.EEXIST}
		if owner != 0 && p.s.mapping.manyUsers() {
			p.add("give away /"+seen, unix.SYS_FCHOWNAT, dir, nsinit.Str(name), nsinit.Int(owner), nsinit.Int(owner), nsinit.Int(unix.AT_SYMLINK_NOFOLLOW))
		}
		p.add("open /"+seen, unix.SYS_OPENAT, dir, nsinit.Str(name), nsinit.Int(flags), nsinit.Int(0))
		next := p.store()
		p.close(dir)
		dir = next
	}
	return dir
}

// foreign reports whether the path at lies in a place whose content comes from a
// layer: then links there must not lead the construction elsewhere.
func (p *planner) foreign(at string) (root, rest string, ok bool) {
	for _, kept := range p.s.kept {
		if at != kept && within(at, kept) {
			return kept[1:], at[len(kept)+1:], true
		}
	}
	return "", "", false
}

// placeOwner is who owns what is made in a place.
func placeOwner(root string) int {
	if root == "home/user" {
		return userID
	}
	return 0
}

// attachTo puts a detached tree onto the directory or file that is open as at,
// and closes both.
func (p *planner) attachTo(name string, tree, at nsinit.Arg) {
	p.add("attach "+name, unix.SYS_MOVE_MOUNT, tree, nsinit.Str(""), at, nsinit.Str(""),
		nsinit.Int(unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
	p.close(tree)
	p.close(at)
}

// Steps that explain looks for.
const (
	stepOverlay   = "mount the overlay"
	stepAttribute = "set an attribute of a file of the scratch"
)

// overlayRemedy says what lets a sandbox have layers.
func overlayRemedy(step string) string {
	if step == stepAttribute {
		return "use Linux 6.6 or later, whose tmpfs keeps attributes of files; without layers of files, that is without snapshots and images, a sandbox can be made"
	}
	return "use Linux 5.19 or later with overlayfs (modprobe overlay, as root), and a security profile that allows its mounts; without layers of files, that is without snapshots and images, a sandbox can be made"
}

// probeOverlay really builds a sandbox with two layers, one that ends at once.
// What is in the way is an [*IsolationError].
func probeOverlay(ctx context.Context) (err error) {
	r, err := inspect()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sandbox-probe-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var layers []stackLayer
	for _, name := range []string{"0", "1"} {
		source := path.Join(dir, name)
		if err := os.Mkdir(source, 0o755); err != nil {
			return err
		}
		if r.mapping == mapBlock {
			if err := os.Chown(source, volumeIDs, volumeIDs); err != nil {
				return err
			}
		}
		layers = append(layers, stackLayer{source, ownersStored})
	}
	return r.try(ctx, layers)
}
