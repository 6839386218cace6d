//go:build linux

package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/providers"
)

func init() { roles["doctor"] = doctorRole }

// doctorRole takes something away, as probeRole does, and prints what Diagnose
// finds then.
func doctorRole() error {
	runtime.LockOSThread()
	for what := range strings.SplitSeq(os.Getenv(envWithout), ",") {
		if err := takeAway(what); err != nil {
			return fmt.Errorf("take away %s: %w", what, err)
		}
	}
	p, err := roleProvider()
	if err != nil {
		return err
	}
	defer p.Close()
	b, err := json.Marshal(p.Diagnose(context.Background()))
	fmt.Printf("%s", b)
	return err
}

func findingOf(all []providers.Finding, what string) providers.Finding {
	i := slices.IndexFunc(all, func(f providers.Finding) bool { return f.What == what })
	if i < 0 {
		return providers.Finding{}
	}
	return all[i]
}

// Every protection has a finding, and what is not fine has a way out.
func TestDiagnose(t *testing.T) {
	p := testProvider(t)
	found := p.Diagnose(t.Context())
	var seen []string
	for _, f := range found {
		t.Logf("%-8s %-11s %s\n      fix: %s", f.Level, f.What, f.Detail, f.Remedy)
		if slices.Contains(seen, f.What) {
			t.Errorf("two findings about %s", f.What)
		}
		seen = append(seen, f.What)
		if f.Detail == "" || f.Level != providers.FindingOK && f.Remedy == "" {
			t.Errorf("incomplete: %+v", f)
		}
	}
	for _, what := range []string{"isolation", "seccomp", "users", "memory", "pids", "cpu", "io", "freezer", "root", "overlay", "scratch", "landlock", "executable", "debug", "network", "gvisor", "disk", "state"} {
		if !slices.Contains(seen, what) {
			t.Errorf("no finding about %s", what)
		}
	}
	if _, err := findRunsc(); err == nil && findingOf(found, "gvisor").Level != providers.FindingOK {
		t.Errorf("gvisor: %+v", findingOf(found, "gvisor"))
	}
	// It says what a sandbox then has.
	sb := create(t, p, providers.CreateRequest{Resources: providers.Resources{CPUMilli: 500}})
	r, err := p.Report(t.Context(), sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		worse := slices.ContainsFunc(r.Degraded, func(d providers.Degradation) bool { return d.What == f.What })
		if (f.Level == providers.FindingDegraded) != worse {
			t.Errorf("%+v; the report of a sandbox: %+v", f, r.Degraded)
		}
	}
}

// Diagnose says the same as a creation does, and nothing of it is left.
func TestDiagnoseRefused(t *testing.T) {
	needIsolation(t)
	for _, c := range []struct {
		without, what string
		outer         bool
		level         providers.FindingLevel
		says, remedy  string
	}{
		{errnoText("clone", unix.EPERM), "isolation", false, providers.FindingFailed, string(CauseUserNamespaces), "docker"},
		{"limit", "isolation", true, providers.FindingFailed, string(CauseUserNamespaceLimit), "sysctl -w user.max_user_namespaces="},
		{"procfs", "isolation", true, providers.FindingFailed, string(CauseProc), "systempaths=unconfined"},
		{errnoText("mount", unix.EACCES), "isolation", false, providers.FindingFailed, string(CauseMount), "security-opt"},
		{errnoText("landlock", unix.ENOSYS), "landlock", false, providers.FindingDegraded, "none", "lsm="},
		{errnoText("mount_setattr", unix.ENOSYS), "root", false, providers.FindingInfo, "5.12", "5.12"},
	} {
		t.Run(c.without, func(t *testing.T) {
			var found []providers.Finding
			if err := json.Unmarshal([]byte(runWithout(t, "doctor", c.without, c.outer)), &found); err != nil {
				t.Fatal(err)
			}
			f := findingOf(found, c.what)
			if f.Level != c.level || !strings.Contains(f.Detail, c.says) || !strings.Contains(f.Remedy, c.remedy) {
				t.Errorf("%+v", f)
			}
			if c.level == providers.FindingFailed && findingOf(found, "state").What == "" {
				t.Error("the rest is not looked at")
			}
		})
	}
}

// The state directory is looked at and left alone.
func TestDiagnoseState(t *testing.T) {
	needIsolation(t)
	root := filepath.Join(testRoot(t), "new", "state")
	p, err := New(providers.Config{StateDir: root})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	d := &diagnosis{p: p}
	d.state()
	if f := findingOf(d.found, "state"); f.Level != providers.FindingOK || !strings.Contains(f.Detail, "will be made") {
		t.Errorf("%+v", f)
	}
	if _, err := os.Stat(root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s was made: %v", root, err)
	}
	tr, err := openTree(root)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	e, lock, err := tr.newEntry(newTestID())
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	for _, c := range []struct {
		held  bool
		level providers.FindingLevel
	}{{true, providers.FindingOK}, {false, providers.FindingInfo}} {
		if !c.held {
			lock.Close()
		}
		d := &diagnosis{p: p}
		d.state()
		if f := findingOf(d.found, "leftovers"); f.Level != c.level {
			t.Errorf("held %v: %+v", c.held, f)
		}
	}
	if err := os.Chmod(filepath.Join(root, "local"), 0o755); err != nil {
		t.Fatal(err)
	}
	d = &diagnosis{p: p}
	d.state()
	if f := findingOf(d.found, "state"); f.Level != providers.FindingFailed || !strings.Contains(f.Remedy, "0700") {
		t.Errorf("a directory that others can read: %+v", f)
	}
}

func newTestID() string { return randomText(idLength) }

func TestDelegation(t *testing.T) {
	one := []cgroupMount{{version: 2, point: "/sys/fs/cgroup", own: "/sys/fs/cgroup/user.slice/x.scope"}}
	text := delegation(one, "mytool", 1000, 1000)
	for _, s := range []string{"systemd-run --user --scope -p Delegate=yes mytool", "/sys/fs/cgroup/sandbox-1000", "chown 1000:1000", "cgroup_parent", "subtree_control", "providers/local/systemd"} {
		if !strings.Contains(text, s) {
			t.Errorf("%q is not in %s", s, text)
		}
	}
	text = delegation([]cgroupMount{{version: 1, point: "/cg/memory"}, {version: 2, point: "/cg/unified"}}, "mytool", 5, 6)
	if strings.Contains(text, "systemd") || !strings.Contains(text, "/cg/memory/sandbox-5 /cg/unified/sandbox-5") {
		t.Error(text)
	}
}
