package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/examples/declarative/internal/where"
	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

func TestMain(m *testing.M) { os.Exit(sbtest.Main(m)) }

func picture(t *testing.T) []byte {
	t.Helper()
	data, err := os.ReadFile("rocket.jpg")
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestShrink(t *testing.T) {
	sbtest.NeedSandbox(t)
	data := picture(t)
	got, err := Shrink(t.Context(), data, 160)
	if err != nil {
		t.Fatal(err)
	}
	want, err := shrink(t.Context(), data, 160)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.PNG, want.PNG) || got.Format != "jpeg" || got.Width != 160 {
		t.Errorf("the sandbox and this process differ: %d × %d %s", got.Width, got.Height, got.Format)
	}
	if _, err := png.Decode(bytes.NewReader(got.PNG)); err != nil {
		t.Error(err)
	}
}

func TestHostileInput(t *testing.T) {
	sbtest.NeedSandbox(t)
	data := picture(t)
	for _, c := range []struct {
		name string
		data []byte
		max  int
		want func(error) bool
	}{
		{"no picture", []byte("GIF"), 10, func(err error) bool { return errors.Is(err, image.ErrFormat) }},
		{"cut in half", data[:len(data)/2], 10, func(err error) bool { return strings.Contains(err.Error(), "invalid JPEG format") }},
		{"claims to be huge", bomb(1<<20, 1<<20), 10, func(err error) bool {
			tooLarge, ok := errors.AsType[*TooLargeError](err)
			return ok && tooLarge.Width == 1<<20
		}},
		{"no data", nil, 10, func(err error) bool { return errors.Is(err, sandboxfn.ErrValidation) }},
		{"no size", data, 0, func(err error) bool {
			return errors.Is(err, sandboxfn.ErrValidation) && strings.Contains(err.Error(), "max")
		}},
	} {
		if _, err := Shrink(t.Context(), c.data, c.max); err == nil || !c.want(err) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := Shrink(t.Context(), data, 10); err != nil {
		t.Errorf("a good call after the bad ones: %v", err)
	}
}

func TestItRunsElsewhere(t *testing.T) {
	sbtest.NeedSandbox(t)
	inside, err := WhereItRuns(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	outside, err := where.Here()
	if err != nil {
		t.Fatal(err)
	}
	if shared := where.Shared(inside, outside); len(shared) > 0 {
		t.Errorf("shared namespaces: %v", shared)
	}
}

func TestCommand(t *testing.T) {
	sbtest.NeedSandbox(t)
	out := filepath.Join(t.TempDir(), "out.png")
	for _, c := range []struct {
		name   string
		args   []string
		code   int
		stderr string
	}{
		{"good", []string{"-o", out, "rocket.jpg"}, 0, ""},
		{"no argument", nil, 2, "usage: imagesafe"},
		{"unknown flag", []string{"-x"}, 2, "usage: imagesafe"},
		{"text", []string{"README.md"}, 1, "image: unknown format"},
		{"size out of range", []string{"-max", "5000", "rocket.jpg"}, 1, "4096"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), c.args, &stdout, &stderr)
		if code != c.code || !strings.Contains(stderr.String(), c.stderr) {
			t.Errorf("%s: exit %d\nstdout: %s\nstderr: %s", c.name, code, stdout.String(), stderr.String())
		}
	}
	if _, err := os.Stat(out); err != nil {
		t.Error(err)
	}
}

// bomb is the beginning of a PNG file that claims to have w × h pixels.
func bomb(w, h uint32) []byte {
	chunk := append([]byte("IHDR"), make([]byte, 13)...)
	binary.BigEndian.PutUint32(chunk[4:], w)
	binary.BigEndian.PutUint32(chunk[8:], h)
	chunk[12], chunk[13] = 8, 2 // eight bits, true colour
	out := []byte("\x89PNG\r\n\x1a\n\x00\x00\x00\x0d")
	out = append(out, chunk...)
	return binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(chunk))
}
