//go:build linux

package local

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// An installed runtime of the same version becomes pid 1, unless it is switched
// off or others could have written it.
func TestSmallRuntime(t *testing.T) {
	needIsolation(t)
	t.Setenv(envRuntime, "")
	const version = "v1.2.3"
	cache := testRoot(t)
	// A program that ends at once: a sandbox that has it as pid 1 is never ready.
	path, err := installRuntime(cache, version, "/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode() != 0o555 {
		t.Errorf("installed as %v, %v", fi, err)
	}
	if _, err := installRuntime(cache, version, "/bin/true"); err != nil {
		t.Errorf("once more: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(cache, "runtime", ".*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	used := func(version string, settings map[string]string) bool {
		t.Helper()
		settings[settingPool] = "0"
		p, err := New(providers.Config{StateDir: testRoot(t), CacheDir: cache, Settings: settings})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if p.version != "" {
			t.Errorf("a test knows its version: %s", p.version)
		}
		if settings[settingSmallRuntime] != "off" {
			p.version = version
		}
		_, err = p.Create(t.Context(), providers.CreateRequest{})
		if err != nil && errdefs.CodeOf(err) != "E2009" {
			t.Fatal(err)
		}
		return err != nil
	}
	if !used(version, map[string]string{}) {
		t.Error("the installed runtime is not used")
	}
	if used("v1.2.4", map[string]string{}) {
		t.Error("the runtime of another version is used")
	}
	if used(version, map[string]string{settingSmallRuntime: "off"}) {
		t.Error("it is used though it is switched off")
	}
	t.Setenv(envRuntime, "/proc/self/exe")
	if used(version, map[string]string{}) {
		t.Error("it is used though another is configured")
	}
	t.Setenv(envRuntime, "")
	if err := os.Chmod(path, 0o757); err != nil {
		t.Fatal(err)
	}
	if used(version, map[string]string{}) {
		t.Error("it is used though everybody can write it")
	}
	if _, err := New(providers.Config{Settings: map[string]string{settingSmallRuntime: "perhaps"}}); errdefs.CodeOf(err) != "E8007" {
		t.Errorf("a wrong setting: %v", err)
	}
}
