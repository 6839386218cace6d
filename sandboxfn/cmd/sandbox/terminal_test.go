package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// waitLimit is how long something is waited for that comes at once.
const waitLimit = 20 * time.Second

// tty is a terminal with a person at it.
type tty struct {
	t         *testing.T
	ptmx, end *os.File

	mu   sync.Mutex
	seen bytes.Buffer // guarded by mu
	news chan struct{}
}

func newTTY(t *testing.T, cols, rows uint16) *tty {
	t.Helper()
	ptmx, end, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	w := &tty{t: t, ptmx: ptmx, end: end, news: make(chan struct{}, 1)}
	w.resize(cols, rows)
	read := make(chan struct{})
	go func() {
		defer close(read)
		io.Copy(w, ptmx)
	}()
	t.Cleanup(func() {
		end.Close()
		ptmx.Close()
		<-read
	})
	return w
}

func (w *tty) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen.Write(p)
	select {
	case w.news <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (w *tty) resize(cols, rows uint16) {
	w.t.Helper()
	if err := pty.Setsize(w.ptmx, &pty.Winsize{Cols: cols, Rows: rows}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *tty) typed(keys string) {
	w.t.Helper()
	if _, err := io.WriteString(w.ptmx, keys); err != nil {
		w.t.Fatal(err)
	}
}

// want waits for text, and forgets what was before it.
func (w *tty) want(text string) {
	w.t.Helper()
	limit := time.After(waitLimit)
	for {
		w.mu.Lock()
		before, after, ok := strings.Cut(w.seen.String(), text)
		if ok {
			w.seen.Reset()
			w.seen.WriteString(after)
		}
		w.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-w.news:
		case <-limit:
			w.t.Fatalf("%q was not seen in %q", text, before)
		}
	}
}

// modes are the flags of the terminal.
func (w *tty) modes() unix.Termios {
	w.t.Helper()
	m, err := unix.IoctlGetTermios(int(w.end.Fd()), unix.TCGETS)
	if err != nil {
		w.t.Fatal(err)
	}
	return *m
}

// command is the command line with the terminal as its own.
func (w *tty) command(env []string, args ...string) *exec.Cmd {
	c := exec.Command("sandbox", args...)
	c.Env = append(os.Environ(), env...)
	c.Stdin, c.Stdout, c.Stderr = w.end, w.end, w.end
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	return c
}

func wantStatus(t *testing.T, err error, want int) {
	t.Helper()
	got := 0
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		got = e.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("status %d, want %d", got, want)
	}
}

// sandbox runs the command and returns what it prints.
func sandbox(t *testing.T, env []string, args ...string) string {
	t.Helper()
	c := exec.Command("sandbox", args...)
	c.Env = append(os.Environ(), env...)
	var errs bytes.Buffer
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil {
		t.Fatalf("sandbox %q: %v: %s", args, err, errs.String())
	}
	return strings.TrimSpace(string(out))
}

// A shell has the size of the terminal, every key, and leaves it as it was.
func TestShell(t *testing.T) {
	needSandbox(t)
	_, env := world(t)
	id := sandbox(t, env, "create")
	defer sandbox(t, env, "kill", id)
	w := newTTY(t, 101, 41)
	before := w.modes()
	c := w.command(env, "shell", id)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Process.Kill()
	w.typed("stty size; echo a''b\n")
	w.want("41 101")
	w.want("ab")
	if during := w.modes(); during.Lflag&(unix.ICANON|unix.ECHO|unix.ISIG) != 0 {
		t.Errorf("the terminal is not raw: %#x", during.Lflag)
	}
	w.resize(120, 50)
	w.typed("until [ \"$(stty size)\" = '50 120' ]; do sleep 0.02; done; echo re''sized\n")
	w.want("resized")
	w.typed("sh -c \"echo beg''in; exec sleep 1000\"\n") // a shell may lose what comes while it forks
	w.want("begin")
	w.typed("\x03") // is no signal for the command here
	w.typed("echo still he''re; exit 7\n")
	w.want("still here")
	wantStatus(t, c.Wait(), 7)
	if w.modes() != before {
		t.Errorf("modes %+v, want %+v", w.modes(), before)
	}
}

// A signal, and a sandbox that ends, leave the terminal as it was, too.
func TestShellEnds(t *testing.T) {
	needSandbox(t)
	_, env := world(t)
	for name, end := range map[string]struct {
		do     func(t *testing.T, c *exec.Cmd, id string)
		status int
		text   string
	}{
		"signal": {func(t *testing.T, c *exec.Cmd, _ string) { c.Process.Signal(syscall.SIGTERM) }, 128 + 15, ""},
		"hangup": {func(t *testing.T, c *exec.Cmd, _ string) { c.Process.Signal(syscall.SIGHUP) }, 128 + 1, ""},
		"kill":   {func(t *testing.T, _ *exec.Cmd, id string) { sandbox(t, env, "kill", id) }, 4, "sandbox: E2022"},
	} {
		t.Run(name, func(t *testing.T) {
			id := sandbox(t, env, "create")
			defer sandbox(t, env, "kill", id)
			w := newTTY(t, 80, 24)
			before := w.modes()
			c := w.command(env, "exec", "-t", id, "--", "sh", "-c", "echo be''gin; exec sleep 1000")
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			defer c.Process.Kill()
			w.want("begin")
			if w.modes() == before {
				t.Error("the terminal is not raw")
			}
			end.do(t, c, id)
			wantStatus(t, c.Wait(), end.status)
			if w.modes() != before {
				t.Errorf("modes %+v, want %+v", w.modes(), before)
			}
			w.want(end.text)
		})
	}
}

// Colours are for terminals, and for those who want them.
func TestColours(t *testing.T) {
	needSandbox(t)
	_, env := world(t)
	for name, c := range map[string]struct {
		env  []string
		want string
	}{
		"colours":  {nil, "\x1b[32mok      \x1b[0m  isolation"},
		"no color": {[]string{"NO_COLOR=1"}, "ok        isolation"},
		"dumb":     {[]string{"TERM=dumb"}, "ok        isolation"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTTY(t, 80, 24)
			cmd := w.command(append(env[:len(env):len(env)], c.env...), "doctor")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			w.want(c.want)
			cmd.Wait()
		})
	}
	if out := sandbox(t, env, "doctor"); strings.Contains(out, "\x1b") {
		t.Errorf("colours in a pipe: %q", out)
	}
}

// On a terminal, killing all sandboxes wants a yes.
func TestKillAllAsks(t *testing.T) {
	needSandbox(t)
	_, env := world(t)
	id := sandbox(t, env, "create")
	for _, c := range []struct {
		answer string
		status int
		left   string
	}{{"\n", 1, id}, {"n\n", 1, id}, {"y\n", 0, ""}} {
		w := newTTY(t, 80, 24)
		cmd := w.command(env, "kill", "--all")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		w.want("kill 1 sandboxes of provider local? [y/N] ")
		w.typed(c.answer)
		wantStatus(t, cmd.Wait(), c.status)
		if left := sandbox(t, env, "ls", "-q"); left != c.left {
			t.Errorf("after %q: %q", c.answer, left)
		}
	}
}

// A reader that leaves ends the command, as in every pipe.
func TestBrokenPipe(t *testing.T) {
	needSandbox(t)
	_, env := world(t)
	id := sandbox(t, env, "create")
	defer sandbox(t, env, "kill", id)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("sandbox", "exec", id, "--", "yes")
	c.Env = append(os.Environ(), env...)
	c.Stdout = w
	var errs bytes.Buffer
	c.Stderr = &errs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	io.ReadFull(r, make([]byte, 4096))
	r.Close()
	wantStatus(t, c.Wait(), 128+13)
	if errs.Len() > 0 {
		t.Errorf("%s", errs.String())
	}
	for end := time.Now().Add(waitLimit); ; { // who is killed has its name until it is waited for
		out := sandbox(t, env, "exec", id, "--", "sh", "-c", "cat /proc/[0-9]*/comm")
		if !strings.Contains(out, "yes") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("it runs on: %q", out)
		}
	}
}
