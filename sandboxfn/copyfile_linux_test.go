package sandboxfn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// copySource is a sandbox with a file that holds "new".
func copySource(t *testing.T) (sb *Sandbox, name string) {
	sb = create(t, hostClient(t, &hostProvider{}, nil), nil)
	name = workDir(t, sb) + "/f"
	must(t, sb.FS(t.Context()).WriteFile(name, []byte("new"), 0o640))
	return sb, name
}

// A copy of one file leaves links where they are and replaces what they lead to.
func TestCopyFromFollowsLinks(t *testing.T) {
	sb, name := copySource(t)
	dir := t.TempDir()
	must(t, os.Mkdir(dir+"/sub", 0o755))
	must(t, os.WriteFile(dir+"/sub/old", []byte("older than that"), 0o600))
	for link, to := range map[string]string{"file": "sub/old", "twice": "file", "absent": dir + "/sub/absent", "loop": "loop"} {
		must(t, os.Symlink(to, filepath.Join(dir, link)))
	}
	for link, at := range map[string]string{"twice": "sub/old", "absent": "sub/absent"} {
		must(t, sb.CopyFrom(t.Context(), name, filepath.Join(dir, link)))
		if i, err := os.Lstat(filepath.Join(dir, link)); err != nil || i.Mode()&fs.ModeSymlink == 0 {
			t.Errorf("%s is %v, %v", link, i, err)
		}
		got, err := os.ReadFile(filepath.Join(dir, at))
		if i, serr := os.Lstat(filepath.Join(dir, at)); string(got) != "new" || err != nil || serr != nil || i.Mode() != 0o640 {
			t.Errorf("%s holds %q, %v; it is %v, %v", at, got, err, i, serr)
		}
	}
	if err := sb.CopyFrom(t.Context(), name, dir+"/loop"); errdefs.CodeOf(err).Class() != "E4000" {
		t.Errorf("a link to itself: %v", err)
	}
	if left, _ := filepath.Glob(dir + "/.copy-*"); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// Pipes, and what a process has open, take the bytes and stay what they are.
func TestCopyFromWritesInto(t *testing.T) {
	sb, name := copySource(t)
	pipe := filepath.Join(t.TempDir(), "pipe")
	must(t, syscall.Mkfifo(pipe, 0o600))
	got := make(chan string, 1)
	go func() {
		data, err := os.ReadFile(pipe)
		got <- fmt.Sprint(string(data), err)
	}()
	must(t, sb.CopyFrom(t.Context(), name, pipe))
	if i, err := os.Lstat(pipe); err != nil || i.Mode()&fs.ModeNamedPipe == 0 {
		t.Fatalf("the pipe is %v, %v", i, err) // nobody writes to the reader then
	}
	if s := <-got; s != "new<nil>" {
		t.Errorf("from the pipe: %s", s)
	}
	// Nobody reads it, and who waits goes away.
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := sb.CopyFrom(ctx, name, pipe); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a reader: %v", err)
	}

	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	must(t, sb.CopyFrom(t.Context(), name, fmt.Sprintf("/dev/fd/%d", w.Fd())))
	w.Close()
	if data, err := io.ReadAll(r); string(data) != "new" || err != nil {
		t.Errorf("from an open pipe: %q, %v", data, err)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	must(t, err)
	defer f.Close()
	must(t, sb.CopyFrom(t.Context(), name, fmt.Sprintf("/dev/fd/%d", f.Fd())))
	if data, err := io.ReadAll(f); string(data) != "new" || err != nil { // of the file that is open, whatever has its name
		t.Errorf("from an open file: %q, %v", data, err)
	}
}

// A device is written to. One of its own, as root could replace those that all use.
func TestCopyFromDevice(t *testing.T) {
	sb, name := copySource(t)
	device := filepath.Join(t.TempDir(), "null")
	if err := syscall.Mknod(device, syscall.S_IFCHR|0o666, 1<<8|3); err != nil {
		t.Skipf("no device can be made here: %v", err)
	}
	if f, err := os.OpenFile(device, os.O_WRONLY, 0); err != nil {
		t.Skipf("devices do not work here: %v", err)
	} else {
		f.Close()
	}
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(device, link))
	for _, to := range []string{device, link} {
		if err := sb.CopyFrom(t.Context(), name, to); err != nil {
			t.Errorf("%s: %v", to, err)
		}
	}
	if i, err := os.Lstat(device); err != nil || i.Mode()&fs.ModeCharDevice == 0 {
		t.Errorf("the device is %v, %v", i, err)
	}
}

// What takes no file stays what it is, too.
func TestCopyFromRefuses(t *testing.T) {
	sb, name := copySource(t)
	dir, err := os.MkdirTemp("", "cp") // the path of a socket is short
	must(t, err)
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", dir+"/socket")
	must(t, err)
	defer l.Close()
	for _, to := range []string{dir + "/socket", dir} {
		before, err := os.Lstat(to)
		must(t, err)
		if err := sb.CopyFrom(t.Context(), name, to); errdefs.CodeOf(err) != "E4003" {
			t.Errorf("%s: %v", to, err)
		}
		if after, err := os.Lstat(to); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s was replaced: %v", to, err)
		}
	}
}
