//go:build linux

package local

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func testStore(t *testing.T) *store {
	tr := testTree(t)
	return &store{dir: tr.bin, path: filepath.Join(tr.path, "bin")}
}

func testArtifact(t *testing.T, content string) providers.Artifact {
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(content))
	return providers.Artifact{Digest: hex.EncodeToString(sum[:]), Path: path}
}

func TestStoreAdd(t *testing.T) {
	s := testStore(t)
	content := strings.Repeat("program", 100_000)
	a := testArtifact(t, content)
	var wg sync.WaitGroup
	for range 8 { // at once, in two stores on the same directory
		other := &store{dir: s.dir, path: s.path}
		wg.Go(func() {
			for _, s := range []*store{s, other} {
				if _, err := s.add(t.Context(), a); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	path, err := s.add(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, []byte(content)) {
		t.Errorf("content differs: %v", err)
	}
	if fi, _ := os.Stat(path); fi.Mode() != 0o555 {
		t.Errorf("mode is %v", fi.Mode())
	}
	if names, _ := s.dir.allNames(); len(names) != 2 {
		t.Errorf("left behind: %q", names)
	}
}

func TestStoreRefuses(t *testing.T) {
	s := testStore(t)
	good := testArtifact(t, "a")
	fifo := t.TempDir()
	for name, a := range map[string]providers.Artifact{
		"content differs":   {Digest: strings.Repeat("0", 64), Path: good.Path},
		"not a digest":      {Digest: "../../../etc/passwd", Path: good.Path},
		"upper case digest": {Digest: strings.ToUpper(good.Digest), Path: good.Path},
		"not there":         {Digest: strings.Repeat("0", 64), Path: good.Path + "x"},
		"a directory":       {Digest: strings.Repeat("0", 64), Path: fifo},
		"a device":          {Digest: strings.Repeat("0", 64), Path: "/dev/zero"},
	} {
		if _, err := s.add(t.Context(), a); errdefs.CodeOf(err).Class() != "E2000" {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.add(ctx, good); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if names, _ := s.dir.names(); len(names) != 0 {
		t.Errorf("left behind: %q", names)
	}
}

func TestStoreCollect(t *testing.T) {
	s := testStore(t)
	old, fresh := testArtifact(t, "old"), testArtifact(t, "fresh")
	for _, a := range []providers.Artifact{old, fresh} {
		if _, err := s.add(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	then := time.Now().Add(-8 * 24 * time.Hour)
	if err := os.Chtimes(filepath.Join(s.path, old.Digest), then, then); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.path, ".new"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.collect(time.Now().Add(-storeKeep), nil); err != nil {
		t.Fatal(err)
	}
	names, _ := s.dir.allNames()
	if len(names) != 2 {
		t.Errorf("left: %q", names)
	}
	// Using an entry keeps it.
	if err := os.Chtimes(filepath.Join(s.path, fresh.Digest), then, then); err != nil {
		t.Fatal(err)
	}
	if _, err := s.add(t.Context(), fresh); err != nil {
		t.Fatal(err)
	}
	if err := s.collect(time.Now().Add(-storeKeep), nil); err != nil || !s.has(fresh.Digest) {
		t.Errorf("an entry in use was removed: %v", err)
	}
}
