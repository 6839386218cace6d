//go:build linux

package local

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseCgroupMounts(t *testing.T) {
	for _, c := range []struct {
		name, mountinfo, own string
		want                 []cgroupMount
	}{
		{"hybrid",
			`31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
34 30 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
`, "3:cpu,cpuacct:/\n2:memory:/a/b\n1:name=systemd:/x\n0::/u\n",
			[]cgroupMount{
				{1, "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu", []string{"cpu"}},
				{1, "/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/a/b", []string{"memory"}},
				{2, "/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified/u", nil},
			}},
		{"unified", "34 30 0:30 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n", "0::/user.slice/x.scope\n",
			[]cgroupMount{{2, "/sys/fs/cgroup", "/sys/fs/cgroup/user.slice/x.scope", nil}}},
		{"bind of a part", "34 30 0:30 /docker/abc /sys/fs/cgroup/a\\040b rw - cgroup2 cgroup2 rw\n", "0::/docker/abc/sub\n",
			[]cgroupMount{{2, "/sys/fs/cgroup/a b", "/sys/fs/cgroup/a b/sub", nil}}},
		{"own group out of sight", "34 30 0:30 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/docker/other\n", nil},
		{"above the namespace", "34 30 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/../../x\n", nil},
		{"nonsense", "a b c\n - \n1 2 3 4 5 6 - cgroup2\n", "x\n::\n", nil},
	} {
		got := parseCgroupMounts([]byte(c.mountinfo), []byte(c.own))
		if !slices.EqualFunc(got, c.want, func(a, b cgroupMount) bool {
			return a.version == b.version && a.point == b.point && a.own == b.own && slices.Equal(a.controllers, b.controllers)
		}) {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
}

func FuzzParseCgroupMounts(f *testing.F) {
	f.Add([]byte("34 30 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"), []byte("0::/a\n"))
	f.Add([]byte("32 30 0:28 / /m\\040 rw - cgroup cgroup rw,memory\n"), []byte("2:memory:/a/b\n"))
	f.Fuzz(func(t *testing.T, mountinfo, own []byte) {
		for _, m := range parseCgroupMounts(mountinfo, own) {
			if rel, err := filepath.Rel(m.point, m.own); err != nil || strings.HasPrefix(rel, "../") || rel == ".." {
				t.Errorf("own group %q is outside of %q", m.own, m.point)
			}
		}
	})
}

func TestOwnCgroups(t *testing.T) {
	got := ownCgroups("abc", []string{
		"/sys/fs/cgroup/memory/sandbox-go/abc/work", "/sys/fs/cgroup/memory/sandbox-go/abc",
		"/sys/fs/cgroup/memory/sandbox-go/abcd", "/sys/fs/cgroup/memory/sandbox-go", "relative/sandbox-go/abc",
		"/sys/fs/cgroup/sandbox-go/abc/../../x", "",
	})
	if want := []string{"/sys/fs/cgroup/memory/sandbox-go/abc/work", "/sys/fs/cgroup/memory/sandbox-go/abc"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestMachineMemory(t *testing.T) {
	if m := machineMemory(); m < 64<<20 || m == math.MaxInt64 {
		t.Errorf("machine has %d bytes", m)
	}
}

// groupsHere is where this process can make groups; the test is skipped where
// it cannot.
func groupsHere(t *testing.T) *cgroupHost {
	t.Helper()
	h := findCgroups("", "/")
	if h.mechanism(limitMemory) == "" || h.mechanism(limitPids) == "" {
		t.Skip("control groups cannot be made here: ", h.why)
	}
	t.Cleanup(h.tidy)
	return h
}

// Every limit is either found by use or explained.
func TestFindCgroups(t *testing.T) {
	h := findCgroups("", "/")
	defer h.tidy()
	for _, l := range append([]string{limitFreezer}, cgroupLimitNames...) {
		if h.mechanism(l) == "" && h.why[l] == "" {
			t.Errorf("%s: neither there nor explained", l)
		}
		t.Log(l, h.mechanism(l), h.at[l].parent, h.why[l])
	}
	if none := findCgroups("/no/such/group", "/"); none.mechanism(limitMemory) != "" {
		t.Error("a parent that is not there was accepted")
	}
}

func TestCgroup(t *testing.T) {
	h := groupsHere(t)
	lim := cgroupLimits{memory: 64 << 20, pids: 20, cpuMilli: 500}
	plans := h.plan(randomText(idLength), lim)
	g, err := createCgroups(plans, lim)
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := g.join(cmd.Process.Pid); err != nil {
		t.Error(err)
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/cgroup")
	if err != nil || !strings.Contains(string(b), cgroupFolder+"/") {
		t.Errorf("process is in %s, %v", b, err)
	}
	if err := os.Remove(g.dirs[1]); err == nil {
		t.Error("a group with a process was removed")
	}
	cmd.Process.Kill()
	cmd.Wait()
	if err := removeCgroups(g.dirs); err != nil {
		t.Error(err)
	}
	if err := removeCgroups(g.dirs); err != nil {
		t.Error("removing twice:", err)
	}
	for _, d := range g.dirs {
		if _, err := os.Stat(d); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left", d)
		}
	}
}

// Groups of many sandboxes are made and removed at once, and the directory
// that holds them comes and goes meanwhile.
func TestCgroupsAtOnce(t *testing.T) {
	h := groupsHere(t)
	lim := cgroupLimits{memory: 64 << 20, pids: 20}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 25 {
				g, err := createCgroups(h.plan(randomText(idLength), lim), lim)
				if err != nil {
					t.Error(err)
					return
				}
				g.close()
				if err := removeCgroups(g.dirs); err != nil {
					t.Error(err)
				}
				h.tidy()
			}
		})
	}
	wg.Wait()
}

// Groups without a state directory go, but not those that are new or in use.
func TestCollectStrays(t *testing.T) {
	h := groupsHere(t)
	lim := cgroupLimits{memory: 64 << 20, pids: 20}
	var groups []*cgroup
	for range 2 {
		g, err := createCgroups(h.plan(randomText(idLength), lim), lim)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			g.close()
			if err := removeCgroups(g.dirs); err != nil {
				t.Error(err)
			}
		}()
		groups = append(groups, g)
	}
	used, empty := groups[0], groups[1]
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	for _, f := range used.files {
		switch f.kind {
		case groupTask, groupWork:
			if err := writePid(f.File, cmd.Process.Pid); err != nil {
				t.Fatal(err)
			}
		}
	}
	there := func(g *cgroup) bool {
		return !slices.ContainsFunc(g.dirs, func(d string) bool { _, err := os.Stat(d); return err != nil })
	}
	h.collectStrays()
	if !there(empty) {
		t.Error("a new group was removed")
	}
	old := time.Now().Add(-2 * strayAge)
	for _, g := range groups {
		for _, d := range g.dirs {
			if err := os.Chtimes(d, old, old); err != nil {
				t.Skip("times of groups cannot be set: ", err)
			}
		}
	}
	h.collectStrays()
	if there(empty) {
		t.Error("a stray stays")
	}
	if !there(used) {
		t.Error("a group in use was removed")
	}
}

// In the unified tree commands are moved after their start. Whatever they
// started in the meantime is moved too.
func TestUnifiedSweep(t *testing.T) {
	mounts, err := readCgroupMounts()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(mounts, func(m cgroupMount) bool { return m.version == 2 })
	if i < 0 {
		t.Skip("no unified tree is mounted")
	}
	plan := cgroupPlan{controllerAt: controllerAt{2, mounts[i].own}}
	plan.base = filepath.Join(plan.parent, cgroupFolder, randomText(idLength))
	g, err := createCgroups([]cgroupPlan{plan}, cgroupLimits{})
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		t.Skip("groups cannot be made in ", plan.parent)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Rmdir(filepath.Dir(plan.base))
	defer func() {
		g.close()
		if err := removeCgroups(g.dirs); err != nil {
			t.Error(err)
		}
	}()
	if len(g.files) != 2 || g.files[0].kind != groupWork || g.files[1].kind != groupInit {
		t.Fatalf("files: %+v", g.files)
	}
	cmd := exec.Command("sh", "-c", "sleep 60 & sleep 60 & setsid sleep 60 & wait")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		b, _ := os.ReadFile(filepath.Join(plan.work(), "cgroup.procs"))
		for pid := range strings.FieldsSeq(string(b)) {
			n, _ := strconv.Atoi(pid)
			unix.Kill(n, unix.SIGKILL)
		}
		cmd.Wait()
	}()
	if err := g.join(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	for len(descendants(cmd.Process.Pid)) < 3 {
		time.Sleep(time.Millisecond)
	}
	for _, pid := range descendants(cmd.Process.Pid) {
		if err := g.join(pid); err != nil {
			t.Fatal(err)
		}
	}
	if err := sweep(g.files[0].File, g.files[1].File, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	left, _ := os.ReadFile(filepath.Join(plan.base, "init", "cgroup.procs"))
	moved, _ := os.ReadFile(filepath.Join(plan.work(), "cgroup.procs"))
	if len(left) != 0 || strings.Count(string(moved), "\n") != 4 {
		t.Errorf("left %q, moved %q", left, moved)
	}
}
