package artifact

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestBuild builds this test again and finds it again. It is for this platform,
// because the standard library would have to be compiled for another.
func TestBuild(t *testing.T) {
	own, err := Own()
	if err != nil {
		t.Fatal(err)
	}
	platform := own.Platform
	cache := filepath.Join(t.TempDir(), "cache")
	a, err := Build(t.Context(), cache, platform)
	if err != nil {
		t.Fatal(err)
	}
	if a.Platform != platform || filepath.Dir(a.Path) != cache || a.Size == 0 {
		t.Errorf("built %+v", a)
	}
	if out, err := exec.Command(a.Path, "-test.run=^TestInspectRefuses$").CombinedOutput(); err != nil {
		t.Errorf("what was built does not run: %v\n%s", err, out)
	}
	t.Setenv("PATH", "")
	b, err := Build(t.Context(), cache, platform)
	if err != nil || b != a {
		t.Errorf("second time %+v (%v), want %+v", b, err, a)
	}
	if _, err := Build(t.Context(), cache, "linux/none"); err == nil {
		t.Error("built without a go command")
	}
	if left, err := os.ReadDir(cache); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
}

func TestBuildArgs(t *testing.T) {
	settings := []debug.BuildSetting{
		{Key: "-tags", Value: "a,b"}, {Key: "-race", Value: "true"}, {Key: "-trimpath", Value: "true"},
		{Key: "-ldflags", Value: "-X m.v=1 -s"}, {Key: "CGO_ENABLED", Value: "1"}, {Key: "vcs", Value: "git"},
	}
	flags := []string{"-tags=a,b", "-trimpath", "-ldflags=-X m.v=1 -s"}
	for path, want := range map[string][]string{
		"example.com/cmd/x":           slices.Concat([]string{"build"}, flags, []string{"example.com/cmd/x"}),
		"example.com/x.test":          slices.Concat([]string{"test", "-c", "-vet=off"}, flags, []string{"example.com/x"}),
		"command-line-arguments":      nil,
		"command-line-arguments.test": nil,
		"":                            nil,
	} {
		got, err := buildArgs(&debug.BuildInfo{Path: path, Settings: settings})
		if !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%s: %q (%v), want %q", path, got, err, want)
		}
	}
}

func TestTrim(t *testing.T) {
	cache := t.TempDir()
	now := time.Now()
	name := func(i int) string { return filepath.Join(cache, fmt.Sprintf("%064d-linux-arm64", i)) }
	age := func(path string, d time.Duration) {
		t.Helper()
		if err := os.Chtimes(path, now.Add(-d), now.Add(-d)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		if err := os.WriteFile(name(i), nil, 0o700); err != nil {
			t.Fatal(err)
		}
		age(name(i), time.Duration(i)*time.Minute)
	}
	age(name(2), 31*24*time.Hour)
	foreign := filepath.Join(cache, "notes-x")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{".build-old", ".build-new"} {
		if err := os.Mkdir(filepath.Join(cache, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	age(filepath.Join(cache, ".build-old"), 40*24*time.Hour)
	age(foreign, 40*24*time.Hour)
	if err := Trim(cache, now); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(cache)
	if err != nil {
		t.Fatal(err)
	}
	built := 0
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), "-arm64") {
			built++
		}
	}
	if built != 16 {
		t.Errorf("%d left, want 16", built)
	}
	for path, want := range map[string]bool{
		name(0): true, name(2): false, name(19): false, foreign: true,
		filepath.Join(cache, ".build-old"): false, filepath.Join(cache, ".build-new"): true,
	} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", path, err == nil, want)
		}
	}
}
