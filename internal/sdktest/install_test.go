package sdktest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// lack skips the test for want of something, or fails it in CI, which has all.
func lack(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("in CI: "+format, args...)
	}
	t.Skipf(format, args...)
}

// needNode makes sure of node and npm as new as the packages ask for.
func needNode(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs whole suites of other programs")
	}
	for _, name := range []string{"node", "npm"} {
		if _, err := exec.LookPath(name); err != nil {
			lack(t, "%s is not installed", name)
		}
	}
	out, err := exec.Command("node", "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	version := strings.TrimSpace(string(out))
	major, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	if n, err := strconv.Atoi(major); err != nil || n < 20 {
		lack(t, "node is %s; the packages need 20 or newer", version)
	}
}

// install returns a directory with what testdata/name/package-lock.json lists.
// Packages run no scripts of theirs while they are installed.
func install(t *testing.T, name string) string {
	t.Helper()
	src := filepath.Join("testdata", name)
	files := []string{"package.json", "package-lock.json"}
	sum := sha256.New()
	content := map[string][]byte{}
	for _, file := range files {
		b, err := os.ReadFile(filepath.Join(src, file))
		if err != nil {
			t.Fatal(err)
		}
		sum.Write(b)
		content[file] = b
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	base := filepath.Join(cache, "sandbox-go", "sdktest")
	dir := filepath.Join(base, fmt.Sprintf("%s-%x", name, sum.Sum(nil)[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	if err := os.MkdirAll(base, 0o755); err != nil {
		t.Fatal(err)
	}
	work, err := os.MkdirTemp(base, "installing-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(work)
	for file, b := range content {
		if err := os.WriteFile(filepath.Join(work, file), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	cmd.Dir = work
	cmd.WaitDelay = 5 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		lack(t, "npm ci of %s: %v\n%s", name, err, out)
	}
	// Another run may have been faster; then its directory is as good.
	if err := os.Rename(work, dir); err != nil {
		if _, statErr := os.Stat(dir); statErr != nil {
			t.Fatal(err)
		}
	}
	return dir
}
