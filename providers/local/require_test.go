//go:build linux

package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Whatever can be missing is named like a protection, says why and what helps,
// and is an error where it is required.
func TestRequireDegraded(t *testing.T) {
	none := &cgroupHost{at: map[string]controllerAt{}, why: map[string]string{limitMemory: "nothing is mounted"}}
	rates := limits{cpuMilli: 500, diskWrite: minDiskRate}
	worst := degradations(none, &probeResult{}, exePlain, &order{mapping: mapSingle, network: netHost, limits: rates})
	old := &cgroupHost{at: map[string]controllerAt{limitIO: {version: 1}}, why: map[string]string{}}
	worst = append(worst, degradations(old, &probeResult{landlock: 1}, exeDetached, &order{mapping: mapBlock, limits: rates})...)
	for _, what := range []string{"memory", "pids", "cpu", "io", "freezer", "landlock", "users", "executable", "network"} {
		i := slices.IndexFunc(worst, func(d providers.Degradation) bool { return d.What == what })
		if i < 0 {
			t.Errorf("%s never degrades", what)
			continue
		}
		err := checkRequire([]string{"userns", what}, worst)
		e, ok := errors.AsType[*errdefs.Error](err)
		if !errors.Is(err, errdefs.ErrRequire) || !ok || e.Suggestion != worst[i].Remedy || !strings.Contains(err.Error(), worst[i].Why) || worst[i].Remedy == "" {
			t.Errorf("%s required: %v", what, err)
		}
		others := slices.DeleteFunc(slices.Clone(worst), func(d providers.Degradation) bool { return d.What == what })
		if err := checkRequire([]string{what}, others); err != nil {
			t.Errorf("%s required and there: %v", what, err)
		}
	}
	for _, d := range worst {
		if !slices.Contains(protections, d.What) {
			t.Errorf("%s cannot be required", d.What)
		}
	}
	if err := checkRequire([]string{"luck"}, nil); !errors.Is(err, errdefs.ErrRequire) {
		t.Errorf("a protection that does not exist: %v", err)
	}
}

// withoutGroups is a provider that finds no control groups, as most ordinary
// users have none.
func withoutGroups(t *testing.T) (p *Provider, root string) {
	t.Helper()
	needIsolation(t)
	root = testRoot(t)
	p, err := New(providers.Config{StateDir: root, Settings: map[string]string{settingCgroupParent: "/no/such/group"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		checkNothingLeft(t, root)
	})
	return p, root
}

// What is required and missing is refused before anything is made.
func TestRequireBeforeAnything(t *testing.T) {
	p, root := withoutGroups(t)
	for _, what := range []string{"memory", "pids", "cpu", "freezer"} {
		_, err := p.Create(t.Context(), providers.CreateRequest{Require: []string{what}, Resources: providers.Resources{CPUMilli: 500}})
		if !errors.Is(err, errdefs.ErrRequire) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(root, "local", "boxes", "*")); len(left) > 0 {
		t.Errorf("made all the same: %q", left)
	}
	if _, err := os.Stat(filepath.Join(root, "local", "ended")); err == nil {
		t.Error("something has run")
	}
}

// TestFewestProcesses: with the least that may be asked for, commands start, whatever
// threads init has.
func TestFewestProcesses(t *testing.T) {
	p, _ := withoutGroups(t)
	for range 3 {
		sb := create(t, p, providers.CreateRequest{Resources: providers.Resources{Processes: minProcesses}})
		time.Sleep(50 * time.Millisecond) // init has its threads now
		if out, end := sh(t, sb, "echo $(echo two)"); out != "two\n" {
			t.Errorf("%q, %+v", out, end)
		}
		if err := p.Kill(t.Context(), sb.ID); err != nil {
			t.Error(err)
		}
	}
}

// Without control groups every limit has something in its place, and abuse ends
// at it.
func TestLimitsWithoutGroups(t *testing.T) {
	p, _ := withoutGroups(t)
	sb := create(t, p, providers.CreateRequest{Resources: providers.Resources{MemoryMiB: 128, Processes: 40, CPUMilli: 500}})
	r, err := p.Report(t.Context(), sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	for what, want := range map[string]string{"memory": bySampling, "pids": byRlimit, "cpu": byAffinity, "io": unlimited} {
		if r.Limits[what] != want {
			t.Errorf("%s: %q, want %q", what, r.Limits[what], want)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, end, err := shell(ctx, sb, "exec tail /dev/zero")
	if err != nil || end.Exited || !end.MemoryLimit {
		t.Errorf("memory: %+v, %v", end, err)
	}
	// More processes than there may be: the shell says so, and what is there goes on.
	out, _ := sh(t, sb, "i=0; while [ $i -lt 100 ]; do sleep 3 & i=$((i+1)); done 2>&1; wait; echo done")
	if strings.Contains(out, "done\n") && !strings.Contains(out, "fork") {
		t.Errorf("processes: %q", out)
	}
	if out, _ := sh(t, sb, "exec nproc"); out != "1\n" {
		t.Errorf("processors: %q", out)
	}
	if out, end := sh(t, sb, "echo alive"); out != "alive\n" || end.MemoryLimit {
		t.Errorf("afterwards: %q, %+v", out, end)
	}
}
