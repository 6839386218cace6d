package acceptance

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/acceptance/objects"
	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

func TestClasses(t *testing.T) {
	sbtest.NeedSandbox(t)
	t.Setenv("TALLY_KEY", "s3cret")
	ctx := t.Context()
	var stdout safeBuffer
	o := &sandboxfn.Options{Stdout: &stdout}
	m := objects.NewTally(objects.TallyParams{Name: "a"}, o)
	for i := 1; i <= 3; i++ {
		if got, err := m.Add(ctx, 1); got != 7*i || err != nil {
			t.Fatalf("add: %d, %v", got, err)
		}
	}
	sum := sha256.Sum256([]byte("s3cret"))
	if got, err := m.Describe(ctx); got != "a 21 apples "+hex.EncodeToString(sum[:4])+" [opened]" || err != nil {
		t.Errorf("describe: %q, %v", got, err)
	}
	var items []string
	for item, err := range m.Each(ctx, "x") {
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, item)
	}
	if len(items) != 21 || items[20] != "x20" {
		t.Errorf("each: %q", items)
	}
	if got, err := m.AddFunc().Collect(ctx, []int{0, 0, 0}); err != nil || len(got) != 3 {
		t.Errorf("collect: %d, %v", got, err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if got, err := m.Scale(ctx, i); got != fmt.Sprint(7*i, " of 8") || err != nil {
				t.Errorf("scale(%d): %q, %v", i, got, err)
			}
		})
	}
	wg.Wait()
	if _, err := m.Add(ctx, -1); !errors.Is(err, objects.ErrName) || err.Error() != "add -1: "+objects.ErrName.Error() {
		t.Errorf("error of a method: %v", err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if got := stdout.String(); !strings.Contains(got, "a closed at 21\n") {
		t.Errorf("exit printed %q", got)
	}
	if _, err := m.Add(ctx, 1); !errors.Is(err, sandboxfn.ErrCall) {
		t.Errorf("after Close: %v", err)
	}

	// The parameters are checked where the call is made, and again by enter.
	if _, err := objects.NewTally(objects.TallyParams{Step: -1}, o).Add(ctx, 1); !errors.Is(err, sandboxfn.ErrValidation) || len(sandboxfn.FieldErrors(err)) != 2 {
		t.Errorf("parameters: %v", err)
	}
	_, err := objects.NewTally(objects.TallyParams{Name: "bad"}, o).Add(ctx, 1)
	if !errors.Is(err, objects.ErrName) || !errors.Is(err, sandboxfn.ErrWorkerStart) || !strings.Contains(err.Error(), "step enter") {
		t.Errorf("enter: %v", err)
	}
}

func TestPinned(t *testing.T) {
	sbtest.NeedSandbox(t)
	t.Setenv("TALLY_KEY", "s3cret")
	ctx := t.Context()
	m := objects.NewTally(objects.TallyParams{Name: "pinned", Step: 1}, nil)
	p, err := sandboxfn.Pin(ctx, m)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := p.Add(ctx, 1); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got, err := p.Add(ctx, 0); got != 20 || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
	if err := p.Die(ctx); !errors.Is(err, sandboxfn.ErrWorkerLost) {
		t.Errorf("die: %v", err)
	}
	for range 2 {
		lost, err := p.Add(ctx, 1)
		if !errors.Is(err, sandboxfn.ErrWorkerLost) || lost != 0 {
			t.Errorf("after its worker: %d, %v", lost, err)
		}
	}
	if err := errors.Join(p.Close(), m.Close()); err != nil {
		t.Error(err)
	}
}

func TestFiles(t *testing.T) {
	sbtest.NeedSandbox(t)
	ctx, dir := t.Context(), t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o640)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	src, dst := put("src.txt", "text"), filepath.Join(dir, "dst.txt")
	path, err := objects.Convert(ctx, src, dst, false)
	if err != nil || filepath.Base(path) != "src.txt" || strings.Contains(path, dir) || read("dst.txt") != "TEXT" {
		t.Errorf("the function saw %s, %v", path, err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the path of the sandbox is one of this machine: %v", err)
	}
	put("dst.txt", "old")
	if _, err := objects.Convert(ctx, src, dst, true); !errors.Is(err, objects.ErrName) || read("dst.txt") != "old" {
		t.Errorf("a function that fails: %v, dst %q", err, read("dst.txt"))
	}

	put("tree/sub/leaf", "leaf")
	if err := os.Symlink("sub/leaf", filepath.Join(dir, "tree", "link")); err != nil {
		t.Fatal(err)
	}
	if err := objects.CopyTree(ctx, filepath.Join(dir, "tree"), []string{filepath.Join(dir, "t1"), filepath.Join(dir, "t2")}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"t1/link", "t2/sub/leaf"} {
		if got := read(name); got != "leaf" {
			t.Errorf("%s: %q", name, got)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "tree", "out")); err != nil {
		t.Fatal(err)
	}
	if err := objects.CopyTree(ctx, filepath.Join(dir, "tree"), []string{filepath.Join(dir, "t1")}); !errors.Is(err, sandboxfn.ErrFileKind) || read("t1/link") != "leaf" {
		t.Errorf("a link that leaves: %v", err)
	}

	if err := objects.Join(ctx, objects.Job{In: []string{src, put("b/src.txt", "other")}, Out: filepath.Join(dir, "joined")}); err != nil || read("joined") != "src.txt=text\nsrc.txt=other" {
		t.Errorf("join: %v, %q", err, read("joined"))
	}

	b := make([]byte, 8<<20)
	rand.NewChaCha8([32]byte{}).Read(b)
	want := sha256.Sum256(b)
	for range 2 { // the second time it is there
		sum, back, err := objects.Hash(ctx, sandboxfn.FromBytes("big.bin", b))
		if err != nil || sum != hex.EncodeToString(want[:]) || back.Size() != int64(len(b)) {
			t.Fatalf("hash: %s, %v", sum, err)
		}
		got, err := os.ReadFile(back.Path())
		if err != nil || !bytes.Equal(got, b) || back.Name() != "big.bin" {
			t.Errorf("back: %d bytes, %v", len(got), err)
		}
		if err := back.Close(); err != nil {
			t.Error(err)
		}
	}
	var names []string
	es, _ := os.ReadDir(dir)
	for _, e := range es {
		names = append(names, e.Name())
	}
	if got := strings.Join(names, " "); got != "b dst.txt joined src.txt t1 t2 tree" {
		t.Errorf("left behind: %s", got)
	}
}

// safeBuffer is a buffer that several goroutines use.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
