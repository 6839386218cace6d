// Package objects holds a class and functions with files, for the acceptance
// tests.
//
//sandbox:package timeout=1m memory=256MiB
package objects

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

//go:generate go tool sandboxgen

// ErrName is the sentinel of names that nobody likes.
var ErrName = errors.New("a name that nobody likes")

// tally counts what it is told.
//
//sandbox:class workers=2 grace=2s env=TALLY_UNIT=apples
type tally struct {
	Name string `validate:"required"`
	Step int    `sandbox:"default=7" validate:"min=1"`
	Unit string `sandbox:"env=TALLY_UNIT"`
	Key  string `sandbox:"secret=TALLY_KEY"`

	n    int
	seen []string
}

//sandbox:enter
func (t *tally) open(context.Context) error {
	if t.Name == "bad" {
		return fmt.Errorf("open %s: %w", t.Name, ErrName)
	}
	t.seen = append(t.seen, "opened")
	return nil
}

// add counts n steps and says how many there are.
//
//sandbox:method timeout=30s
func (t *tally) add(_ context.Context, n int) (int, error) {
	if n < 0 {
		return t.n, fmt.Errorf("add %d: %w", n, ErrName)
	}
	t.n += n * t.Step
	return t.n, nil
}

// describe says what it knows.
//
//sandbox:method
func (t *tally) describe() string {
	sum := sha256.Sum256([]byte(t.Key))
	return fmt.Sprint(t.Name, " ", t.n, " ", t.Unit, " ", hex.EncodeToString(sum[:4]), " ", t.seen)
}

// each yields the numbers up to the count.
//
//sandbox:method
func (t *tally) each(ctx context.Context, label string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for i := range t.n {
			if !yield(fmt.Sprint(label, i), nil) {
				return
			}
		}
	}
}

// scale multiplies by the step, several numbers at once, and says how many.
//
//sandbox:method batch=8 batch_wait=50ms
func (t *tally) scale(ns []int) []string {
	out := make([]string, len(ns))
	for i, n := range ns {
		out[i] = fmt.Sprint(n*t.Step, " of ", len(ns))
	}
	return out
}

// die ends the worker.
//
//sandbox:method
func (t *tally) die() { os.Exit(3) }

// close prints what came of it.
//
//sandbox:exit
func (t *tally) close() { fmt.Println(t.Name, "closed at", t.n) }

// convert writes src in capitals to dst.
//
//sandbox:func in=src out=dst
func convert(ctx context.Context, src, dst string, fail bool) (string, error) {
	b, err := os.ReadFile(src)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(dst, bytes.ToUpper(b), 0o640); err != nil {
		return "", err
	}
	if fail {
		return "", fmt.Errorf("convert: %w", ErrName)
	}
	return src, nil
}

// copyTree copies trees, one to each of dsts.
//
//sandbox:func in=src out=dsts
func copyTree(ctx context.Context, src string, dsts []string) error {
	for _, dst := range dsts {
		if out, err := exec.CommandContext(ctx, "cp", "-a", src, dst).CombinedOutput(); err != nil {
			return fmt.Errorf("cp: %w: %s", err, out)
		}
	}
	return nil
}

// Job is data with paths in it.
type Job struct {
	In  []string `sandbox:"file"`
	Out string   `sandbox:"file,out"`
	Sep string   `sandbox:"default='\n'"`
}

// join joins files to one.
//
//sandbox:func
func join(j Job) error {
	var parts []string
	for _, p := range j.In {
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		parts = append(parts, filepath.Base(p)+"="+string(b))
	}
	return os.WriteFile(j.Out, []byte(strings.Join(parts, j.Sep)), 0o600)
}

// hash hashes a file and gives it back.
//
//sandbox:func
func hash(f sandboxfn.File) (string, sandboxfn.File, error) {
	in, err := f.Open()
	if err != nil {
		return "", f, err
	}
	defer in.Close()
	h := sha256.New()
	_, err = io.Copy(h, in)
	return hex.EncodeToString(h.Sum(nil)), f, err
}
