//go:build linux

package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Init is in its groups from the beginning, in trees of both versions, and no
// thread of the client stays there.
func TestBornInGroups(t *testing.T) {
	needIsolation(t)
	mounts, err := readCgroupMounts()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if m.version == 1 && len(m.controllers) == 1 && m.controllers[0] == limitFreezer {
			continue // a frozen group of another test must not hold a thread of ours
		}
		t.Run(fmt.Sprint("version ", m.version, m.controllers), func(t *testing.T) {
			plan := cgroupPlan{controllerAt: controllerAt{m.version, m.own}}
			if m.version == 1 {
				plan.limits = []string{limitMemory} // so that there is a group of init
			}
			dir := filepath.Join(m.own, cgroupFolder, randomText(idLength))
			home := cgroupHome{filepath.Join(dir, "init"), m.version}
			err := os.MkdirAll(home.dir, 0o755)
			if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
				t.Skip("groups cannot be made in ", m.own)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Rmdir(filepath.Dir(dir))
			defer func() {
				if err := removeCgroups([]string{home.dir, dir}); err != nil {
					t.Error(err) // a thread that stayed keeps it busy
				}
			}()
			g := &cgroup{homes: []cgroupHome{home}}
			for range 20 {
				bornPID(t, g, filepath.Base(dir)+"/init\n")
			}
			checkNoThreadIn(t, dir)
		})
	}
}

// Where a group cannot be entered by birth, the process is moved; where it cannot
// be moved either, nothing is left running.
func TestNotBornInGroups(t *testing.T) {
	needIsolation(t)
	dir := t.TempDir()
	home := cgroupHome{dir: dir}
	procs := filepath.Join(dir, "cgroup.procs")
	for version := 1; version <= 2; version++ {
		if err := os.WriteFile(procs, nil, 0o600); err != nil { // there is no file tasks, and dir is no group
			t.Fatal(err)
		}
		home.version = version
		p := bornPID(t, &cgroup{homes: []cgroupHome{home}}, "")
		if b, err := os.ReadFile(procs); err != nil || string(b) != strconv.Itoa(p) {
			t.Errorf("version %d: %q was written, want %d: %v", version, b, p, err)
		}
	}
	if err := os.Remove(procs); err != nil {
		t.Fatal(err)
	}
	var attr syscall.SysProcAttr
	var pid int
	_, err := (&cgroup{homes: []cgroupHome{home}}).born(&attr, false, func() (*os.Process, error) {
		p, err := os.StartProcess("/bin/sleep", []string{"sleep", "60"}, &os.ProcAttr{Sys: &attr})
		if err == nil {
			pid = p.Pid
		}
		return p, err
	})
	if _, ok := errors.AsType[*joinError](err); !ok {
		t.Errorf("got %v", err)
	}
	if err := unix.Kill(pid, 0); pid == 0 || err != unix.ESRCH {
		t.Errorf("process %d is left: %v", pid, err)
	}
}

// bornPID starts a process in g, ends it and returns its number. When part is not
// empty, the process must be in a group with that in its path, by birth.
func bornPID(t *testing.T, g *cgroup, part string) int {
	t.Helper()
	attr := syscall.SysProcAttr{Cloneflags: cloneFlags | unix.CLONE_NEWNET | unix.CLONE_VFORK | unix.CLONE_VM} // as of an init
	p, err := g.born(&attr, false, func() (*os.Process, error) {
		b, err := os.ReadFile("/proc/thread-self/cgroup")
		if part != "" && !attr.UseCgroupFD && !strings.Contains(string(b), part) {
			t.Errorf("it would have to be moved: %v", err)
		}
		return os.StartProcess("/bin/sleep", []string{"sleep", "60"}, &os.ProcAttr{Sys: &attr})
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Wait()
	defer p.Kill()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(p.Pid) + "/cgroup")
	if err != nil || !strings.Contains(string(b), part) {
		t.Errorf("the process is in %s: %v", b, err)
	}
	return p.Pid
}

// checkNoThreadIn looks at all threads of this process.
func checkNoThreadIn(t *testing.T, dir string) {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/cgroup")
	if err != nil || len(tasks) == 0 {
		t.Fatal(tasks, err)
	}
	eventually(t, "no thread of ours is in the groups of a sandbox", func() bool {
		for _, name := range tasks {
			if b, err := os.ReadFile(name); err == nil && strings.Contains(string(b), filepath.Base(dir)) {
				return false
			}
		}
		return true
	})
}
