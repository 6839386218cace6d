package sandboxfn

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/artifact"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// otherExecutable is this program in another file, with other content, which
// edit may change.
func otherExecutable(t *testing.T, edit func([]byte)) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the executable is none for Linux")
	}
	own, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	path := filepath.Join(t.TempDir(), "worker")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(f, own); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	if edit != nil {
		head := make([]byte, 64)
		if _, err := f.ReadAt(head, 0); err != nil {
			t.Fatal(err)
		}
		edit(head)
		if _, err := f.WriteAt(head, 0); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// forArm makes the head of an executable that of one for arm64, or amd64 where
// this is arm64.
func forArm(head []byte) {
	head[18], head[19] = 183, 0 // e_machine, EM_AARCH64
	if runtime.GOARCH == "arm64" {
		head[18] = 62 // EM_X86_64
	}
}

func TestWorkerBinary(t *testing.T) {
	path := otherExecutable(t, nil)
	t.Setenv("SANDBOX_WORKER_BINARY", path)
	c := hostClient(t, &hostProvider{}, nil)
	if got, err := poolDouble.Call(WithClient(t.Context(), c), 4); err != nil || got != 8 {
		t.Fatalf("got %d, %v", got, err)
	}
	own, err := artifact.Own()
	if err != nil {
		t.Fatal(err)
	}
	if file, err := artifact.Open(path); err != nil || file.Digest == own.Digest {
		t.Errorf("the same digest %s (%v)", file.Digest, err)
	}
}

func TestWorkerBinaryUnusable(t *testing.T) {
	for name, path := range map[string]string{
		"missing":        filepath.Join(t.TempDir(), "none"),
		"no executable":  "/etc/passwd",
		"other platform": otherExecutable(t, forArm),
	} {
		t.Run(name, func(t *testing.T) {
			c := hostClient(t, &hostProvider{}, &ClientOptions{WorkerBinary: path})
			_, err := poolDouble.Call(WithClient(t.Context(), c), 4)
			e, ok := errors.AsType[*errdefs.Error](err)
			for ok && e.Code != "E9010" {
				e, ok = errors.AsType[*errdefs.Error](e.Err)
			}
			if !ok || !strings.Contains(e.Suggestion, "sandboxgen -worker -target linux/") || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v, want E9010 that names %s and what to do", err, path)
			}
		})
	}
}

// TestWorkerBuilt: where the program does not fit, what the go command builds
// is started, once built for all workers and all runs.
func TestWorkerBuilt(t *testing.T) {
	testOnlyBuildWorkers = true
	defer func() { testOnlyBuildWorkers = false }()
	product := otherExecutable(t, nil)
	bin, cache := t.TempDir(), t.TempDir()
	log := filepath.Join(bin, "log")
	script := "#!/bin/sh\necho \"$GOOS/$GOARCH $CGO_ENABLED $*\" >>" + log + "\nwhile [ \"$1\" != -o ]; do shift; done\ncp " + product + " \"$2\"\n"
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	path := os.Getenv("PATH")
	t.Setenv("PATH", bin+string(os.PathListSeparator)+path)
	for range 2 {
		c := hostClient(t, &hostProvider{}, &ClientOptions{CacheDir: cache})
		if got, err := poolDouble.Call(WithClient(t.Context(), c), 4); err != nil || got != 8 {
			t.Fatalf("got %d, %v", got, err)
		}
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != 1 || !strings.HasPrefix(lines[0], "linux/"+runtime.GOARCH+" 0 test -c ") || !strings.HasSuffix(lines[0], "/sandboxfn") {
		t.Errorf("the go command was run as\n%s", text)
	}

	// One that fails says what it said.
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte("#!/bin/sh\necho no such package >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	c := hostClient(t, &hostProvider{}, &ClientOptions{CacheDir: t.TempDir()})
	_, err = poolDouble.Call(WithClient(t.Context(), c), 4)
	if !errors.Is(err, &errdefs.Error{Code: "E9010"}) || !strings.Contains(err.Error(), "no such package") {
		t.Errorf("error %v, want E9010 with what go said", err)
	}
}

// TestPlatformOf: a sandbox is asked once, and what it says is remembered.
func TestPlatformOf(t *testing.T) {
	if _, err := exec.LookPath("uname"); err != nil {
		t.Skip("no uname here")
	}
	c := hostClient(t, &hostProvider{}, nil)
	files := workerFiles{c: c}
	s := &setup{name: "x"}
	sb := create(t, c, nil)
	got, err := files.platformOf(context.Background(), s, sb)
	if err != nil || got != "linux/"+runtime.GOARCH {
		t.Fatalf("platform %q, %v", got, err)
	}
	if files.platforms[templateKey(&s.opts)] != got {
		t.Error("not remembered")
	}
	for machine, want := range map[string]string{"x86_64": "amd64", "aarch64": "arm64", "i686": "386", "riscv64": "riscv64"} {
		if got := goArch(machine); got != want {
			t.Errorf("%s is %s, want %s", machine, got, want)
		}
	}
}
