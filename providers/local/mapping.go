//go:build linux

package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// mapKind says how ids inside belong to ids of the host. None of them maps an
// id to root of the host: with 0 mapped to 0, files of root on a writable mount
// and below /proc/sys answer even to a process without capabilities.
type mapKind string

const (
	mapBlock  mapKind = "block"  // root: 0..65535 to a leased block
	mapSubid  mapKind = "subid"  // a user with newuidmap: 1000 to the caller, the rest from the sub-ids
	mapSingle mapKind = "single" // a user without: 1000 to the caller, nothing else
)

// The ids that root's sandboxes are mapped to: blockCount blocks from blockBase, one
// more for the probe, and one for the owners of files of volumes.
// They are above what distributions give to people, services and sub-ids.
const (
	blockBase  = 0x70000000
	blockSize  = 65536
	blockCount = 4094
)

// userID is the user and the group that commands run as inside when nothing
// else is asked for.
const userID = 1000

// idMapping is a choice of mapping for one sandbox. block counts from zero and
// matters for mapBlock only; who launches holds its lease.
type idMapping struct {
	kind   mapKind
	block  int
	asRoot bool // mapSingle maps 0, not 1000
}

// manyUsers reports whether init can run commands as more than one user.
func (m idMapping) manyUsers() bool { return m.kind != mapSingle }

// mappingKind is the mapping that this process makes its sandboxes with.
func mappingKind() mapKind {
	if os.Geteuid() == 0 {
		return mapBlock
	}
	if _, err := subidTools(); err == nil {
		return mapSubid
	}
	return mapSingle
}

// apply maps the ids of a child that was cloned into a user namespace. It has
// started but does nothing before its program arrives, so that the clone itself
// need not wait for the maps: with CLONE_VFORK it costs the same however large
// this process is.
func (m idMapping) apply(ctx context.Context, pid int) error {
	switch m.kind {
	case mapSubid:
		tools, err := subidTools()
		if err != nil {
			return err
		}
		if err := tools.mapIDs(ctx, tools.uidmap, pid, os.Geteuid(), tools.uids); err != nil {
			return err
		}
		return tools.mapIDs(ctx, tools.gidmap, pid, os.Getegid(), tools.gids)
	case mapSingle:
		// Without privileges a group can be mapped only when it cannot be left.
		if err := writeProc(pid, "setgroups", "deny"); err != nil {
			return err
		}
		id := userID
		if m.asRoot {
			id = 0
		}
		if err := writeProc(pid, "uid_map", fmt.Sprintf("%d %d 1\n", id, os.Geteuid())); err != nil {
			return err
		}
		return writeProc(pid, "gid_map", fmt.Sprintf("%d %d 1\n", id, os.Getegid()))
	case mapBlock:
		text := fmt.Sprintf("0 %d %d\n", blockBase+m.block*blockSize, blockSize)
		if err := writeProc(pid, "uid_map", text); err != nil {
			return err
		}
		return writeProc(pid, "gid_map", text)
	}
	return fmt.Errorf("unknown mapping %q", m.kind)
}

func writeProc(pid int, name, text string) error {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/"+name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(text)); err != nil {
		return &os.PathError{Op: "write", Path: name, Err: err}
	}
	return nil
}

// subids is what a user needs to map more than its own id.
type subids struct {
	uidmap, gidmap string // programs
	uids, gids     idRange
}

// errNoNewPrivs says that programs with a set-uid bit do nothing for us.
var errNoNewPrivs = errors.New("no_new_privs is set for this program, so that newuidmap cannot help it")

type idRange struct{ start, count int }

func subidTools() (*subids, error) {
	var s subids
	if set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err == nil && set == 1 {
		return nil, errNoNewPrivs
	}
	var err error
	if s.uidmap, err = exec.LookPath("newuidmap"); err != nil {
		return nil, err
	}
	if s.gidmap, err = exec.LookPath("newgidmap"); err != nil {
		return nil, err
	}
	id := strconv.Itoa(os.Geteuid())
	name := id
	if u, err := user.LookupId(id); err == nil {
		name = u.Username
	}
	if s.uids, err = subidRange("/etc/subuid", name, id); err != nil {
		return nil, err
	}
	if s.gids, err = subidRange("/etc/subgid", name, id); err != nil {
		return nil, err
	}
	for file, r := range map[string]idRange{"/proc/self/uid_map": s.uids, "/proc/self/gid_map": s.gids} {
		b, err := readProc(file)
		if err != nil {
			return nil, err
		}
		if !r.within(b) {
			return nil, fmt.Errorf("the sub-ids from %d on are not mapped in the user namespace of this program", r.start)
		}
	}
	return &s, nil
}

// within reports whether a map, as user_namespaces(7) shows it, has all of r.
func (r idRange) within(idMap []byte) bool {
	for line := range strings.Lines(string(idMap)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		start, err1 := strconv.Atoi(f[0])
		count, err2 := strconv.Atoi(f[2])
		if err1 == nil && err2 == nil && start <= r.start && r.start+r.count <= start+count {
			return true
		}
	}
	return false
}

// subidRange finds the largest range of a user in subuid(5).
func subidRange(file, name, id string) (idRange, error) {
	f, err := os.Open(file)
	if err != nil {
		return idRange{}, err
	}
	defer f.Close()
	var best idRange
	for sc := bufio.NewScanner(f); sc.Scan(); {
		r, ok := subidLine(sc.Text(), name, id)
		if ok && r.count > best.count {
			best = r
		}
	}
	if best.count < 2000 {
		return idRange{}, fmt.Errorf("%s holds no usable range for %s", file, name)
	}
	return best, nil
}

func subidLine(line, name, id string) (idRange, bool) {
	f := strings.Split(strings.TrimSpace(line), ":")
	if len(f) != 3 || f[0] != name && f[0] != id {
		return idRange{}, false
	}
	start, err1 := strconv.Atoi(f[1])
	count, err2 := strconv.Atoi(f[2])
	if err1 != nil || err2 != nil || start <= 0 || count <= 0 {
		return idRange{}, false
	}
	return idRange{start, min(count, blockSize-1)}, true
}

// mapIDs runs newuidmap(1) or newgidmap(1): 0..999 and what follows 1000 from
// the range, 1000 itself to the caller.
func (s *subids) mapIDs(ctx context.Context, tool string, pid, own int, r idRange) error {
	args := []int{
		pid,
		0, r.start, userID,
		userID, own, 1,
		userID + 1, r.start + userID, r.count - userID,
	}
	text := make([]string, len(args))
	for i, n := range args {
		text[i] = strconv.Itoa(n)
	}
	out, err := exec.CommandContext(ctx, tool, text...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", tool, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// allCaps lists the capabilities that this kernel knows. A child is given them
// as ambient ones, within its own user namespace only, to keep over its exec.
var allCaps = sync.OnceValue(func() []uintptr {
	caps := make([]uintptr, lastCap()+1)
	for i := range caps {
		caps[i] = uintptr(i)
	}
	return caps
})

// lastCap is the highest capability of this kernel.
func lastCap() int {
	b, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && n >= 0 && n < 64 {
			return n
		}
	}
	return unix.CAP_LAST_CAP
}

// buildCaps is what root inside has in the steps of a build, which installers
// need: they change owners and become other users. As init has them too, and
// no_new_privs is set, a program of root gets what is left in the bounding set.
const buildCaps = 1<<unix.CAP_CHOWN | 1<<unix.CAP_FOWNER | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID

// initCaps is the set of capabilities that init keeps, within its own user
// namespace: what it takes to run commands as another user, to signal them and
// to work on their files.
func (m idMapping) initCaps() uint64 {
	if !m.manyUsers() {
		return 0
	}
	return 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_KILL |
		1<<unix.CAP_CHOWN | 1<<unix.CAP_FOWNER | 1<<unix.CAP_DAC_OVERRIDE
}
