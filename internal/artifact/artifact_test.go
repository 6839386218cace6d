package artifact

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

func TestOwn(t *testing.T) {
	a, err := Own()
	if err != nil {
		t.Fatal(err)
	}
	b, err := Own()
	if err != nil || a != b {
		t.Fatalf("second time %+v (%v), want %+v", b, err, a)
	}
	f, err := a.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	digest, size, err := digestOf(a.Name)
	if err != nil || digest != a.Digest || size != a.Size || len(digest) != 64 {
		t.Errorf("digest %s of %d bytes (%v), want %s of %d", digest, size, err, a.Digest, a.Size)
	}
	n, err := Inspect(f)
	if err != nil {
		t.Fatal(err)
	}
	if want := "linux/" + runtime.GOARCH; runtime.GOOS == "linux" && n.Platform != want {
		t.Errorf("platform %q, want %q", n.Platform, want)
	}
}

func TestInspectDynamic(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no shell to look at")
	}
	f, err := os.Open(sh)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := Inspect(f)
	if err != nil {
		t.Fatal(err)
	}
	if n.Interpreter == "" {
		t.Skip("the shell is static here")
	}
	if len(n.Libraries) == 0 {
		t.Error("a dynamic executable without libraries")
	}
	all := func(string) bool { return true }
	if got := n.Missing(all, []string{"/lib"}); len(got) > 0 {
		t.Errorf("missing %v where everything exists", got)
	}
	none := func(string) bool { return false }
	want := append([]string{n.Interpreter}, n.Libraries...)
	if got := n.Missing(none, []string{"/lib"}); !slices.Equal(got, want) {
		t.Errorf("missing %v where nothing exists, want %v", got, want)
	}
}

func TestInspectRefuses(t *testing.T) {
	text := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(text, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(text)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := Inspect(f); err == nil {
		t.Error("a script is taken for an executable")
	}
}

func FuzzInspect(f *testing.F) {
	if a, err := Own(); err == nil {
		if file, err := a.Open(); err == nil {
			head, _ := io.ReadAll(io.LimitReader(file, 4096))
			file.Close()
			f.Add(head)
		}
	}
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, err := Inspect(bytes.NewReader(b)); err == nil {
			n.Missing(func(string) bool { return false }, nil)
		}
	})
}
