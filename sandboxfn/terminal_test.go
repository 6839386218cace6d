package sandboxfn

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
)

// screen reads a terminal and waits for what it shows.
type screen struct {
	t    *testing.T
	term *Terminal
	done chan struct{}

	mu      sync.Mutex
	changed sync.Cond
	text    string // guarded by mu
	seen    int    // guarded by mu; what was waited for ends here
	err     error  // guarded by mu; of the last Read
}

func openScreen(t *testing.T, sb *Sandbox, o *TerminalOptions) *screen {
	t.Helper()
	term, err := sb.Terminal(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{t: t, term: term, done: make(chan struct{})}
	s.changed.L = &s.mu
	go func() {
		defer close(s.done)
		buf := make([]byte, 4<<10)
		for {
			n, err := term.Read(buf)
			s.mu.Lock()
			s.text += string(buf[:n])
			s.err = err
			s.changed.Broadcast()
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		if err := term.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		<-s.done
	})
	return s
}

// await waits until the text after what was seen before matches.
func (s *screen) await(pattern string) {
	s.t.Helper()
	re := regexp.MustCompile(pattern)
	timeout := time.AfterFunc(30*time.Second, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.err = errors.Join(s.err, errors.New("not within 30 s"))
		s.changed.Broadcast()
	})
	defer timeout.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if at := re.FindStringIndex(s.text[s.seen:]); at != nil {
			s.seen += at[1]
			return
		}
		if s.err != nil {
			s.t.Fatalf("no %q: %v; got %q", pattern, s.err, s.text)
		}
		s.changed.Wait()
	}
}

func (s *screen) keys(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.term, text); err != nil {
		s.t.Fatalf("write %q: %v", text, err)
	}
}

func (s *screen) resize(cols, rows int) {
	s.t.Helper()
	if err := s.term.Resize(s.t.Context(), cols, rows); err != nil {
		s.t.Fatal(err)
	}
}

// ended waits for the end and returns what Wait says, and all output.
func (s *screen) ended() (string, error) {
	s.t.Helper()
	<-s.done
	err := s.term.Wait()
	if again := s.term.Wait(); again != err {
		s.t.Errorf("a second Wait returned %v after %v", again, err)
	}
	if s.err != io.EOF {
		s.t.Errorf("the output ended with %v", s.err)
	}
	return s.text, err
}

// onEachTerminal is onEach, and a sandbox whose server is not ours.
func onEachTerminal(t *testing.T, f func(t *testing.T, sb *Sandbox)) {
	onEach(t, f)
	t.Run("foreign", func(t *testing.T) { f(t, foreignSandbox(t)) })
}

// foreignSandbox is a sandbox whose server has nothing that is ours alone.
func foreignSandbox(t *testing.T) *Sandbox {
	p := &hostProvider{}
	p.edit = func(_ *providers.CreateRequest, box *providers.Sandbox) {
		dial := box.Data.Dial
		proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "sandbox"})
		transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
		proxy.Transport, proxy.FlushInterval = transport, -1
		proxy.ModifyResponse = func(r *http.Response) error {
			r.Header.Del("Sandbox-Features")
			r.Header.Del("Sandbox-Error-Code")
			return nil
		}
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/sandbox/") || strings.HasSuffix(r.URL.Path, "/StreamInput") {
				http.NotFound(w, r)
				return
			}
			defer func() { recover() }() // the proxy panics when its client leaves
			proxy.ServeHTTP(w, r)
		}))
		t.Cleanup(transport.CloseIdleConnections)
		t.Cleanup(srv.Close)
		box.Data = providers.Endpoint{URL: srv.URL}
	}
	return create(t, hostClient(t, p, nil), nil)
}

// TestTerminalSize: the first size, a new one with its signal, and those that
// cannot be.
func TestTerminalSize(t *testing.T) {
	need(t, "bash")
	onEachTerminal(t, func(t *testing.T, sb *Sandbox) {
		ctx := t.Context()
		s := openScreen(t, sb, &TerminalOptions{Cols: 132, Rows: 43, Command: "bash", Args: []string{"-c",
			"trap 'stty size; resized=1' WINCH; stty size; echo ready; while [ -z $resized ]; do sleep 0.05; done; read line"}})
		s.await("43 132\r\nready")
		for _, size := range [][2]int{{0, 0}, {80, 0}, {-1, 24}, {80, 1 << 16}} {
			if err := s.term.Resize(ctx, size[0], size[1]); CodeOf(err) != "E3011" {
				t.Errorf("resize to %v: %v", size, err)
			}
		}
		s.resize(80, 24)
		s.await("24 80\r\n")
		s.keys("\n")
		if _, err := s.ended(); err != nil {
			t.Error(err)
		}
		err := s.term.Resize(ctx, 100, 40)
		if !errors.Is(err, ErrProcessGone) || !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("resize after the end: %v", err)
		}
		if _, err := s.term.Write([]byte("x")); !errors.Is(err, ErrProcessGone) || !errors.Is(err, syscall.EPIPE) {
			t.Errorf("write after the end: %v", err)
		}
		for _, o := range []*TerminalOptions{{Cols: -1}, {Rows: 1 << 16}, {Args: []string{"x"}}, {Command: "a\x00b"}, {Env: []string{"x"}}} {
			if _, err := sb.Terminal(ctx, o); CodeOf(err) != "E3011" {
				t.Errorf("%+v: %v", *o, err)
			}
		}
	})
}

// TestTerminalEnd: every line arrives, then the exit status.
func TestTerminalEnd(t *testing.T) {
	onEachTerminal(t, func(t *testing.T, sb *Sandbox) {
		s := openScreen(t, sb, &TerminalOptions{Command: "sh", Args: []string{"-c", "seq 20000; exit 7"}})
		text, err := s.ended()
		if e, ok := errors.AsType[*ExitError](err); !ok || e.ExitCode != 7 || e.Pid != s.term.Pid() {
			t.Errorf("got %v", err)
		}
		var want strings.Builder
		for i := range 20000 {
			fmt.Fprintf(&want, "%d\r\n", i+1)
		}
		if text != want.String() {
			t.Errorf("got %d bytes, want %d", len(text), want.Len())
		}
		if err := s.term.Close(); err != nil {
			t.Errorf("close after the end: %v", err)
		}
	})
}

// TestTerminalEnv: what is there without options, that each can be set, and
// that variables of the sandbox hold here, too.
func TestTerminalEnv(t *testing.T) {
	script := []string{"-c", `echo "$TERM|$LANG|$LC_ALL|$K"; test -t 0 -a -t 1 -a -t 2 && echo tty`}
	check := func(t *testing.T, sb *Sandbox, k string) {
		for _, c := range []struct {
			env  []string
			want string
		}{
			{nil, "xterm-256color|C.UTF-8|C.UTF-8|" + k},
			{[]string{"TERM=dumb", "K=2"}, "dumb|C.UTF-8|C.UTF-8|2"},
			{[]string{"LANG=de_DE.UTF-8"}, "xterm-256color|de_DE.UTF-8||" + k},
			{[]string{"LC_ALL=POSIX"}, "xterm-256color|C.UTF-8|POSIX|" + k},
		} {
			s := openScreen(t, sb, &TerminalOptions{Command: "sh", Args: script, Env: c.env})
			if text, err := s.ended(); err != nil || text != c.want+"\r\ntty\r\n" {
				t.Errorf("%v: got %q, %v", c.env, text, err)
			}
		}
	}
	onEachWith(t, &CreateOptions{Env: map[string]string{"K": "1"}}, func(t *testing.T, sb *Sandbox) { check(t, sb, "1") })
	t.Run("foreign", func(t *testing.T) { check(t, foreignSandbox(t), "") })
}

// TestTerminalShell: without options it is an interactive login shell in a
// terminal of the usual size.
func TestTerminalShell(t *testing.T) {
	onEachTerminal(t, func(t *testing.T, sb *Sandbox) {
		s := openScreen(t, sb, nil)
		s.keys("test -x \"$SHELL\" && echo \"flags:$-:\"; stty size; exit 3\n")
		s.await(`flags:[A-Za-z]*i[A-Za-z]*:\r\n24 80\r\n`)
		_, err := s.ended()
		if e, ok := errors.AsType[*ExitError](err); !ok || e.ExitCode != 3 {
			t.Errorf("got %v", err)
		}
	})
}

// TestTerminalKeys: keys mean the foreground job, the shell ends with Ctrl-D and
// its own status.
func TestTerminalKeys(t *testing.T) {
	need(t, "bash")
	onEachTerminal(t, func(t *testing.T, sb *Sandbox) {
		s := openScreen(t, sb, &TerminalOptions{
			Cols: 200, Command: "bash", Args: []string{"--norc", "--noprofile", "-i"}, Env: []string{"PS1=P$ ", "HISTFILE="},
		})
		s.await(`P\$ `)
		// Jobs say themselves that they have the terminal, and that they have it back.
		s.keys(`sh -c 'echo started; exec sleep 100'` + "\n")
		s.await(`[\r\n]started`)
		s.keys("\x03")
		s.await(`P\$ `)
		s.keys("echo status $?\n")
		s.await(`[\r\n]status 130`)
		s.keys(`bash -c 'trap "echo continued" CONT; echo started; while :; do read -t 1; done'` + "\n")
		s.await(`[\r\n]started`)
		s.keys("\x1a")
		s.await(`Stopped`)
		s.keys("echo status $?; fg\n")
		s.await(`[\r\n]status 148`)
		s.await(`[\r\n]continued`)
		s.keys("\x03")
		s.await(`P\$ `)
		s.keys("echo status $?; (exit 5)\n")
		s.await(`[\r\n]status 130`)
		s.await(`P\$ `)
		s.keys("\x04")
		text, err := s.ended()
		if e, ok := errors.AsType[*ExitError](err); !ok || e.ExitCode != 5 {
			t.Errorf("got %v", err)
		}
		if strings.Contains(text, "job control") {
			t.Errorf("the shell says %q", text)
		}
	})
}

// TestTerminalOrder: much input arrives whole and in order, and so does the
// answer, while the size changes.
func TestTerminalOrder(t *testing.T) {
	onEachTerminal(t, func(t *testing.T, sb *Sandbox) {
		s := openScreen(t, sb, &TerminalOptions{Command: "sh", Args: []string{"-c", "stty raw -echo; echo ready; head -c 400000 | sha256sum; echo end"}})
		s.await("ready")
		var input strings.Builder
		for i := range 50000 {
			fmt.Fprintf(&input, "%07d\n", i)
		}
		for i, rest := 0, input.String(); rest != ""; i++ {
			n := min(len(rest), 1+i*37%5000)
			s.keys(rest[:n])
			rest = rest[n:]
			if i%20 == 0 {
				s.resize(80+i%10, 24)
			}
		}
		s.await(fmt.Sprintf("%x", sha256.Sum256([]byte(input.String()))))
		if _, err := s.ended(); err != nil {
			t.Error(err)
		}
	})
}

// TestTerminalStops: the ways to end one from this side.
func TestTerminalStops(t *testing.T) {
	onEachTerminal(t, func(t *testing.T, sb *Sandbox) {
		tree := &TerminalOptions{Command: "sh", Args: []string{"-c", "sleep 1000 & echo ready; setsid sleep 1000 & wait"}}
		left := func() bool {
			list, err := sb.Processes(context.WithoutCancel(t.Context()))
			return err == nil && len(list) == 0
		}
		t.Run("close", func(t *testing.T) {
			s := openScreen(t, sb, tree)
			s.await("ready")
			if err := s.term.Close(); err != nil {
				t.Fatal(err)
			}
			if err := s.term.Wait(); !errors.Is(err, os.ErrClosed) {
				t.Errorf("Wait after Close: %v", err)
			}
			if _, err := s.term.Write([]byte("x")); err == nil {
				t.Error("Write after Close: no error")
			}
			waitFor(t, patience, "nothing runs", left)
			<-s.done
		})
		t.Run("context", func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			term, err := sb.Terminal(ctx, tree)
			if err != nil {
				t.Fatal(err)
			}
			defer term.Close()
			why := errors.New("enough")
			cancel(why)
			io.Copy(io.Discard, term)
			if err := term.Wait(); !errors.Is(err, why) || !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			waitFor(t, patience, "nothing runs", left)
			if _, err := sb.Terminal(ctx, tree); !errors.Is(err, why) {
				t.Errorf("start with a context that has ended: %v", err)
			}
		})
		t.Run("signal", func(t *testing.T) {
			s := openScreen(t, sb, tree)
			s.await("ready")
			if err := s.term.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			_, err := s.ended()
			if e, ok := errors.AsType[*ExitError](err); !ok || e.Signal != "killed" {
				t.Errorf("got %v", err)
			}
			if err := s.term.Signal(syscall.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
				t.Errorf("signal after the end: %v", err)
			}
		})
		t.Run("missing", func(t *testing.T) {
			if _, err := sb.Terminal(t.Context(), &TerminalOptions{Command: "no-such-program"}); !errors.Is(err, ErrCommandNotFound) {
				t.Errorf("got %v", err)
			}
			if _, err := sb.Terminal(t.Context(), &TerminalOptions{User: "no-such-user"}); !errors.Is(err, ErrUserNotAvailable) {
				t.Errorf("got %v", err)
			}
			if _, err := sb.Terminal(t.Context(), &TerminalOptions{Dir: "/no/such"}); CodeOf(err) != "E3012" {
				t.Errorf("got %v", err)
			}
		})
	})
}

// TestTerminalNotRead: a program whose output nobody reads is held back, takes
// its signals all the same, and Close does not wait for a reader.
func TestTerminalNotRead(t *testing.T) {
	sb := hostSandbox(t)
	term, err := sb.Terminal(t.Context(), &TerminalOptions{Command: "sh", Args: []string{"-c", "yes"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(term, make([]byte, 3<<20)); err != nil {
		t.Fatal(err)
	}
	if err := term.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := term.Read(make([]byte, 1)); err == nil {
		t.Error("Read after Close: no error")
	}
}

// TestAttachToTerminal: a Cmd that follows a process with a terminal gets its
// output as standard output.
func TestAttachToTerminal(t *testing.T) {
	sb := hostSandbox(t)
	s := openScreen(t, sb, &TerminalOptions{Command: "sh", Args: []string{"-c", "echo one; read line; echo two"}})
	s.await("one")
	cmd := sb.Attach(t.Context(), s.term.Pid())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.keys("\n")
	text, err := io.ReadAll(out)
	if err != nil || string(text) != "one\r\n\r\ntwo\r\n" {
		t.Errorf("got %q, %v", text, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
