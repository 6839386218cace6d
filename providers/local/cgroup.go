//go:build linux

package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// cgroupFolder is the directory below the parent group that holds ours.
const cgroupFolder = "sandbox-go"

// Limits that control groups can enforce; the names are those of controllers
// and of the report.
const (
	limitMemory = "memory"
	limitPids   = "pids"
	limitCPU    = "cpu"
)

// limitFreezer is the controller that stops a sandbox. It is not a limit, but
// found, proved and given to a sandbox like one.
const limitFreezer = "freezer"

var cgroupLimitNames = []string{limitMemory, limitPids, limitCPU, limitIO}

// cgroupHost says where this process can make control groups. It is found by
// use, once: a group is made, a limit written, read back and removed, because
// neither the names in cgroup.controllers nor file modes prove that it works.
type cgroupHost struct {
	at  map[string]controllerAt // by limit; absent: cannot be enforced
	why map[string]string       // by limit: what was found instead

	disks []string // that rates can be limited of
}

// controllerAt is the place of one controller.
type controllerAt struct {
	version int    // 1 or 2
	parent  string // of cgroupFolder
}

// cgroupLimits are limits of one sandbox. Zero means none.
type cgroupLimits struct {
	memory   int64 // bytes, of init, commands and scratch together
	pids     int64 // processes and threads of commands
	cpuMilli int64 // of commands

	diskRead, diskWrite int64 // bytes per second, of each of disks
	disks               []string
}

func (h *cgroupHost) mechanism(limit string) string {
	switch h.at[limit].version {
	case 1:
		return "cgroup1"
	case 2:
		return "cgroup2"
	}
	return ""
}

// findCgroups looks for a place for groups. parent, when not empty, is a path
// below the root of each hierarchy; otherwise groups go below our own. root is
// the state directory, whose disk rates can be limited of.
func findCgroups(parent, root string) *cgroupHost {
	h := &cgroupHost{at: map[string]controllerAt{}, why: map[string]string{}}
	disks, diskErr := diskDevices(root)
	h.disks = disks
	mounts, err := readCgroupMounts()
	if err != nil || len(mounts) == 0 {
		for _, l := range append([]string{limitFreezer}, cgroupLimitNames...) {
			h.why[l] = "no control group file system is mounted"
		}
		return h
	}
	for _, l := range append([]string{limitFreezer}, cgroupLimitNames...) {
		h.why[l] = "no hierarchy has the controller " + l
	}
	if len(disks) == 0 {
		h.why[limitIO] = diskErr.Error()
	}
	for _, m := range mounts {
		dir := m.own
		if parent != "" {
			dir = filepath.Join(m.point, filepath.Clean("/"+parent))
		}
		if m.version == 1 {
			for _, l := range m.controllers {
				if l == limitFreezer {
					h.findFreezer1(m, dir)
				} else if l == limitIO && len(disks) == 0 {
					continue
				} else if err := h.prove(filepath.Join(dir, cgroupFolder), 1, l); err != nil {
					h.why[l] = err.Error()
				} else {
					h.at[l] = controllerAt{1, dir}
				}
			}
			continue
		}
		h.findUnified(m, dir, parent != "")
		h.findFreezer2(dir)
	}
	return h
}

// findUnified looks for the nearest group, from dir up to the root of what we
// can see, in which groups with limits can be made. Our own group usually
// cannot have any: it holds processes. Controllers are switched on only in groups
// that are ours to change.
func (h *cgroupHost) findUnified(m cgroupMount, dir string, fixed bool) {
	for {
		ok := h.useUnified(dir, fixed || dir == m.own || delegatedTo(dir))
		if !ok && dir == m.own && markedDelegate(dir) && stepAside(dir) == nil {
			ok = h.useUnified(dir, true)
		}
		if ok || fixed || dir == m.point || len(dir) <= len(m.point) {
			return
		}
		dir = filepath.Dir(dir)
	}
}

func (h *cgroupHost) useUnified(dir string, enable bool) bool {
	offered, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return false
	}
	// Moving a process needs the right to write cgroup.procs of the group that
	// is above both its old and its new place.
	denied := unix.Access(filepath.Join(dir, "cgroup.procs"), unix.W_OK)
	ours := filepath.Join(dir, cgroupFolder)
	found := false
	for _, l := range cgroupLimitNames {
		if h.at[l].version != 0 || l == limitIO && len(h.disks) == 0 || !slices.Contains(strings.Fields(string(offered)), l) {
			continue
		}
		if denied != nil {
			h.why[l] = fmt.Sprintf("%s is not delegated to us: %v", dir, denied)
			continue
		}
		if enable {
			_ = writeCgroup(dir, "cgroup.subtree_control", "+"+controllerName(2, l)) // refused where dir holds processes; prove finds out
		}
		if err := h.prove(ours, 2, l); err != nil {
			h.why[l] = err.Error()
			continue
		}
		h.at[l] = controllerAt{2, dir}
		found = true
	}
	return found && h.at[limitMemory].version != 0
}

// findFreezer1 looks at a hierarchy of version 1. One that has other
// controllers too cannot be used: the thread of init that starts commands is in
// the groups of those, and would be stopped with them.
func (h *cgroupHost) findFreezer1(m cgroupMount, dir string) {
	if h.at[limitFreezer].version == 2 {
		return
	}
	if len(m.controllers) > 1 {
		h.why[limitFreezer] = "the freezer shares a hierarchy with " + strings.Join(m.controllers, ", ")
		return
	}
	if err := h.prove(filepath.Join(dir, cgroupFolder), 1, limitFreezer); err != nil {
		h.why[limitFreezer] = err.Error()
		return
	}
	h.at[limitFreezer] = controllerAt{1, dir}
}

// findFreezer2 looks at the unified tree, which is preferred: what is stopped
// there can be killed. A process is in one group of the tree, so that limits and
// freezer have to be in the same place; else the group at dir will do, also
// where the tree has no controllers.
func (h *cgroupHost) findFreezer2(dir string) {
	for _, l := range cgroupLimitNames {
		if h.at[l].version == 2 {
			dir = h.at[l].parent
			break
		}
	}
	err := unix.Access(filepath.Join(dir, "cgroup.procs"), unix.W_OK)
	if err == nil {
		err = h.prove(filepath.Join(dir, cgroupFolder), 2, limitFreezer)
	}
	switch {
	case err == nil:
		h.at[limitFreezer] = controllerAt{2, dir}
	case h.at[limitFreezer].version == 0:
		h.why[limitFreezer] = fmt.Sprintf("%s is not delegated to us: %v", dir, err)
	}
}

// limitFile is the file that sets a limit, and a value to try it with.
func limitFile(version int, limit string) (name, try string) {
	switch {
	case limit == limitFreezer && version == 1:
		return "freezer.state", "FROZEN"
	case limit == limitFreezer:
		return "cgroup.freeze", "1"
	case limit == limitMemory && version == 1:
		return "memory.limit_in_bytes", "67108864"
	case limit == limitMemory:
		return "memory.max", "67108864"
	case limit == limitPids:
		return "pids.max", "16"
	case limit == limitIO && version == 1:
		return "blkio.throttle.read_bps_device", ""
	case limit == limitIO:
		return "io.max", ""
	case version == 1:
		return "cpu.cfs_quota_us", "50000"
	}
	return "cpu.max", "50000 100000"
}

// prove makes a group below ours, sets a limit, reads it back and removes the
// group.
func (h *cgroupHost) prove(ours string, version int, limit string) error {
	dir := filepath.Join(ours, "probe-"+randomText(8))
	return inFolder(ours, func() error {
		if version == 2 && limit != limitFreezer {
			if err := writeCgroup(ours, "cgroup.subtree_control", "+"+limit); err != nil {
				return err
			}
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		defer unix.Rmdir(dir)
		name, try := limitFile(version, limit)
		if limit == limitIO {
			if version == 1 {
				try = h.disks[0] + " 1048576"
			} else {
				try = rateLine(h.disks[0], 1<<20, 1<<20)
			}
		}
		if err := writeCgroup(dir, name, try); err != nil {
			return err
		}
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil && strings.TrimSpace(string(got)) != try &&
			(limit != limitIO || !strings.HasPrefix(string(got), try+" ")) { // other rates follow
			err = fmt.Errorf("%s/%s holds %q after %q was written", dir, name, got, try)
		}
		return err
	})
}

// inFolder calls f with the directory ours there. Another process that found
// it empty may remove it in between; then everything starts over.
func inFolder(ours string, f func() error) error {
	for tries := 0; ; tries++ {
		if err := os.Mkdir(ours, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		err := f()
		if err == nil || !errors.Is(err, fs.ErrNotExist) || tries == 20 {
			return err
		}
	}
}

func writeCgroup(dir, name, value string) error {
	fd, err := retryEINTR(func() (int, error) {
		return unix.Open(filepath.Join(dir, name), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	})
	if err == nil {
		// A limit of memory gives up for any signal, such as the Go runtime's own.
		_, err = retryEINTR(func() (int, error) { return unix.Write(fd, []byte(value)) })
		unix.Close(fd)
	}
	if err != nil {
		return fmt.Errorf("write %q to %s/%s: %w", value, dir, name, err)
	}
	return nil
}

// cgroup is the set of groups of one sandbox, and the open files by which init
// moves commands into them and counts kills; it has no access to the
// directories.
type cgroup struct {
	dirs  []string     // to remove, in this order
	homes []cgroupHome // that init is in before it does anything
	files []groupFile  // what init gets
}

// groupFile is an open file of a control group.
type groupFile struct {
	kind string
	*os.File
}

// Kinds of group files.
const (
	// groupTask is the file tasks of version 1: the thread that starts commands
	// moves itself, so that commands are born in the group.
	groupTask = "task"

	// groupWork and groupInit are the files cgroup.procs of version 2, where
	// threads of one process cannot be in two groups: each command is moved
	// after its start, and what it started meanwhile is swept up from the
	// group of init. The limits of the sandbox as a whole hold all the time.
	groupWork = "work"
	groupInit = "init"

	// groupKills holds a line "oom_kill N".
	groupKills = "kills"

	// groupFreeze stops and continues what is in a group, groupFrozen says
	// whether all of it has stopped, and by groupStop processes get there. Init
	// keeps groupFrozen locked for life: that, not a process in it, is the sign
	// that the group is in use.
	groupFreeze = "freeze"
	groupFrozen = "frozen"
	groupStop   = "stop"
)

// spareTasks is what version 2 allows a sandbox beyond its limit of processes,
// for the threads of init.
const spareTasks = 128

// plan says which directories create will make, so that they can be written
// down before one of them exists.
func (h *cgroupHost) plan(id string, lim cgroupLimits) []cgroupPlan {
	var out []cgroupPlan
	for _, l := range append(slices.Clone(cgroupLimitNames), limitFreezer) {
		at := h.at[l]
		if at.version == 0 || lim.of(l) == 0 {
			continue
		}
		i := slices.IndexFunc(out, func(p cgroupPlan) bool { return p.parent == at.parent })
		if i < 0 {
			out = append(out, cgroupPlan{controllerAt: at, base: filepath.Join(at.parent, cgroupFolder, id)})
			i = len(out) - 1
		}
		out[i].limits = append(out[i].limits, l)
	}
	return out
}

func (l cgroupLimits) of(limit string) int64 {
	switch limit {
	case limitMemory:
		return l.memory
	case limitPids:
		return l.pids
	case limitFreezer:
		return 1 // always
	case limitIO:
		return max(l.diskRead, l.diskWrite)
	}
	return l.cpuMilli
}

// cgroupPlan is what is made in one hierarchy: base, and below it init and
// work where init has to be in the hierarchy too. With version 1 only memory
// needs that: processes and processor time of init are not limited, so that it
// answers while commands are at their limit.
type cgroupPlan struct {
	controllerAt
	base   string
	limits []string
}

func (p cgroupPlan) split() bool {
	if p.onlyFreezer() {
		return false
	}
	return p.version == 2 || slices.Contains(p.limits, limitMemory)
}

// onlyFreezer reports whether p is for stopping alone. Processes are moved
// there when they are stopped for the first time, so that it costs nothing to
// those that never are.
func (p cgroupPlan) onlyFreezer() bool {
	return len(p.limits) == 1 && p.limits[0] == limitFreezer
}

// homeDir is the group of p that init is in; empty: it stays where the client is.
func (p cgroupPlan) homeDir() string {
	switch {
	case p.split():
		return filepath.Join(p.base, "init")
	case slices.Contains(p.limits, limitIO):
		// Init reads and writes files for its client. It has one group with
		// the commands, because groups of version 1 do not add up.
		return p.base
	}
	return ""
}

func (p cgroupPlan) home() bool { return p.homeDir() != "" }

func (p cgroupPlan) work() string {
	if p.split() {
		return filepath.Join(p.base, "work")
	}
	return p.base
}

// dirs lists the directories of p in the order of removal.
func (p cgroupPlan) dirs() []string {
	if p.split() {
		return []string{filepath.Join(p.base, "work"), filepath.Join(p.base, "init"), p.base}
	}
	return []string{p.base}
}

func planDirs(plans []cgroupPlan) []string {
	var dirs []string
	for _, p := range plans {
		dirs = append(dirs, p.dirs()...)
	}
	return dirs
}

// createCgroups makes the groups of plans and sets their limits. On an error
// it has removed what it made.
func createCgroups(plans []cgroupPlan, lim cgroupLimits) (*cgroup, error) {
	g := &cgroup{}
	if err := g.add(plans, lim); err != nil {
		g.close()
		return nil, errors.Join(err, removeCgroups(g.dirs))
	}
	return g, nil
}

// add makes the groups of plans, and sets their limits. On an error some of it
// may have been done.
func (g *cgroup) add(plans []cgroupPlan, lim cgroupLimits) (err error) {
	g.dirs = append(g.dirs, planDirs(plans)...)
	for _, p := range plans {
		err = inFolder(filepath.Dir(p.base), func() error { return p.make(lim) })
		if err == nil {
			err = g.open(p)
		}
		if err != nil {
			return &errdefs.Error{Code: "E2000", Op: "create sandbox", Message: "create control group", Err: err}
		}
		if dir := p.homeDir(); dir != "" {
			g.homes = append(g.homes, cgroupHome{dir, p.version})
		}
	}
	return nil
}

// open opens what init needs of the groups of p.
func (g *cgroup) open(p cgroupPlan) error {
	var err error
	open := func(kind, dir, name string, flags int) {
		if err != nil {
			return
		}
		var f *os.File
		if f, err = os.OpenFile(filepath.Join(dir, name), flags, 0); err == nil {
			g.files = append(g.files, groupFile{kind, f})
		}
	}
	switch {
	case p.onlyFreezer():
	case p.version == 1:
		open(groupTask, p.work(), "tasks", os.O_WRONLY)
	default:
		open(groupWork, p.work(), "cgroup.procs", os.O_WRONLY)
		open(groupInit, filepath.Join(p.base, "init"), "cgroup.procs", os.O_RDONLY)
	}
	if slices.Contains(p.limits, limitMemory) {
		name := "memory.oom_control"
		if p.version == 2 {
			name = "memory.events"
		}
		open(groupKills, p.work(), name, os.O_RDONLY)
	}
	if slices.Contains(p.limits, limitFreezer) {
		name, _ := limitFile(p.version, limitFreezer)
		open(groupFreeze, p.work(), name, os.O_WRONLY)
		open(groupStop, p.work(), "cgroup.procs", os.O_WRONLY)
		open(groupFrozen, p.work(), frozenFile(p.version), os.O_RDONLY)
		if err == nil {
			err = unix.Flock(int(g.files[len(g.files)-1].Fd()), unix.LOCK_EX|unix.LOCK_NB)
		}
	}
	return err
}

func (p cgroupPlan) make(lim cgroupLimits) error {
	dirs := p.dirs()
	slices.Reverse(dirs)
	if err := os.Mkdir(dirs[0], 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	set := func(dir, name, value string) error { return writeCgroup(dir, name, value) }
	if p.version == 2 {
		for _, l := range p.limits {
			if l == limitFreezer {
				continue // not a controller in the unified tree
			}
			for _, dir := range []string{filepath.Dir(p.base), p.base} {
				if err := set(dir, "cgroup.subtree_control", "+"+controllerName(2, l)); err != nil {
					return err
				}
			}
		}
	}
	if slices.Contains(p.limits, limitMemory) {
		if err := p.limitMemory(lim.memory, set); err != nil {
			return err
		}
	}
	if slices.Contains(p.limits, limitIO) && p.version == 2 {
		if err := p.limitRates(lim, set); err != nil {
			return err
		}
	}
	for _, d := range dirs[1:] {
		if err := os.Mkdir(d, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	work := p.work()
	if slices.Contains(p.limits, limitIO) && p.version == 1 {
		if err := p.limitRates(lim, set); err != nil {
			return err
		}
	}
	if slices.Contains(p.limits, limitPids) {
		n := lim.pids
		if p.version == 1 {
			n++ // the thread of init that starts commands is in there
		} else if err := set(p.base, "pids.max", strconv.FormatInt(n+spareTasks, 10)); err != nil {
			return err
		}
		if err := set(work, "pids.max", strconv.FormatInt(n, 10)); err != nil {
			return err
		}
	}
	if slices.Contains(p.limits, limitCPU) {
		if p.version == 2 {
			return set(work, "cpu.max", fmt.Sprintf("%d 100000", lim.cpuMilli*100))
		}
		if err := set(work, "cpu.cfs_period_us", "100000"); err != nil {
			return err
		}
		return set(work, "cpu.cfs_quota_us", strconv.FormatInt(lim.cpuMilli*100, 10))
	}
	return nil
}

// limitMemory limits init and commands together; of these the kernel chooses a
// command when it has to kill, by oom_score_adj. Swap is not given at all:
// it would only make the limit vague.
func (p cgroupPlan) limitMemory(bytes int64, set func(dir, name, value string) error) error {
	n := strconv.FormatInt(bytes, 10)
	if p.version == 2 {
		if err := set(p.base, "memory.max", n); err != nil {
			return err
		}
		if err := set(p.base, "memory.swap.max", "0"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	// Needed below kernel 5.11, where a limit does not reach children otherwise.
	_ = set(p.base, "memory.use_hierarchy", "1")
	if err := set(p.base, "memory.limit_in_bytes", n); err != nil {
		return err
	}
	if err := set(p.base, "memory.memsw.limit_in_bytes", n); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// close closes the files, which init has copies of.
func (g *cgroup) close() {
	for _, f := range g.files {
		f.Close()
	}
}

// removeCgroups removes the directories in order. A group stays busy for a
// moment after its last process has ended.
func removeCgroups(dirs []string) error {
	deadline := time.Now().Add(time.Second)
	var errs []error
	for _, d := range dirs {
		for pause := 200 * time.Microsecond; ; pause *= 2 {
			err := unix.Rmdir(d)
			if err == nil || err == unix.ENOENT {
				break
			}
			if err != unix.EBUSY && err != unix.EINTR || time.Now().After(deadline) {
				errs = append(errs, fmt.Errorf("remove control group %s: %w", d, err))
				break
			}
			time.Sleep(min(pause, 20*time.Millisecond))
		}
	}
	return errors.Join(errs...)
}

// ownCgroups drops whatever cannot be a group of the sandbox id: the list comes
// from a file.
func ownCgroups(id string, dirs []string) []string {
	part := "/" + cgroupFolder + "/" + id
	return slices.DeleteFunc(slices.Clone(dirs), func(d string) bool {
		return !filepath.IsAbs(d) || filepath.Clean(d) != d || !strings.Contains(d+"/", part+"/")
	})
}

// strayAge is how old a group without processes must be before it is taken for
// the remains of a sandbox whose state directory was removed: a sandbox that is
// being made has an empty group for some milliseconds.
const strayAge = time.Minute

// collectStrays removes groups that belong to no state directory any more.
// Those of living sandboxes are never empty.
func (h *cgroupHost) collectStrays() {
	for _, at := range h.at {
		ours := filepath.Join(at.parent, cgroupFolder)
		entries, err := os.ReadDir(ours)
		if err != nil {
			continue
		}
		for _, e := range entries {
			dir := filepath.Join(ours, e.Name())
			fi, err := e.Info()
			if err != nil || !fi.IsDir() || time.Since(fi.ModTime()) < strayAge {
				continue
			}
			if events, err := os.ReadFile(filepath.Join(dir, "cgroup.events")); err == nil && fieldOf(events, "populated") != 0 {
				continue // of version 2, where the group of commands may be empty
			}
			if lockedGroup(dir) {
				continue
			}
			for _, d := range []string{filepath.Join(dir, "work"), filepath.Join(dir, "init"), dir} {
				if err := unix.Rmdir(d); err != nil && err != unix.ENOENT {
					break
				}
			}
		}
	}
}

// frozenFile says whether all of a group has stopped.
func frozenFile(version int) string {
	if version == 1 {
		return "freezer.state"
	}
	return "cgroup.events"
}

// lockedGroup reports whether a living init has its lock on a group that may
// have no processes, see groupFrozen.
func lockedGroup(dir string) bool {
	for version := 1; version <= 2; version++ {
		f, err := os.Open(filepath.Join(dir, frozenFile(version)))
		if err != nil {
			continue
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		f.Close()
		if err == unix.EWOULDBLOCK {
			return true
		}
	}
	return false
}

// tidy removes our directory from each hierarchy where it is empty.
func (h *cgroupHost) tidy() {
	for _, at := range h.at {
		_ = unix.Rmdir(filepath.Join(at.parent, cgroupFolder)) // busy: somebody has sandboxes
	}
}
