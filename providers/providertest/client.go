package providertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// ClientOptions say what the sandboxes of a client are. The zero value expects
// everything.
type ClientOptions struct {
	// Foreign says that the runtime is not ours: there are no tunnels to ports.
	Foreign bool

	// NoPorts says that HTTP does not reach ports from here.
	NoPorts bool
}

// clientSuite is a client under test and a sandbox of it.
type clientSuite struct {
	t  *testing.T
	c  *sandboxfn.Client
	sb *sandboxfn.Sandbox
	o  ClientOptions
}

// RunClient checks the imperative API through a client: commands, files,
// watching, terminals, ports, pausing and the life of sandboxes. open makes a
// client; RunClient closes it.
func RunClient(t *testing.T, open func(t *testing.T) *sandboxfn.Client, o ClientOptions) {
	c := open(t)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error("close:", err)
		}
	})
	sb, err := c.Create(t.Context(), &sandboxfn.CreateOptions{Lifetime: 10 * time.Minute, Env: map[string]string{"FROM_CREATE": "a b"}})
	if err != nil {
		t.Fatal("create:", err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Error("close sandbox:", err)
		}
	})
	for _, test := range []struct {
		name string
		f    func(*clientSuite)
	}{
		{"output", (*clientSuite).output},
		{"input", (*clientSuite).input},
		{"environment", (*clientSuite).environment},
		{"ends", (*clientSuite).ends},
		{"background", (*clientSuite).background},
		{"files", (*clientSuite).files},
		{"bigFile", (*clientSuite).bigFile},
		{"trees", (*clientSuite).trees},
		{"watch", (*clientSuite).watch},
		{"terminal", (*clientSuite).terminal},
		{"ports", (*clientSuite).ports},
		{"life", (*clientSuite).life},
		{"pause", (*clientSuite).pause},
	} {
		t.Run(test.name, func(t *testing.T) { test.f(&clientSuite{t: t, c: c, sb: sb, o: o}) })
	}
}

// must fails the test on an error.
func (s *clientSuite) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// shell is what a line prints.
func (s *clientSuite) shell(line string) string {
	s.t.Helper()
	out, err := s.sb.Shell(s.t.Context(), line).Output()
	if err != nil {
		s.t.Fatalf("%s: %v", line, err)
	}
	return string(out)
}

func (s *clientSuite) output() {
	if got := s.shell(`printf 'a\0b\377\n'; echo err >&2`); got != "a\x00b\xff\n" {
		s.t.Errorf("bytes that are not text: %q", got)
	}
	if got := s.shell(`echo 'ü 日本 "$HOME"'`); got != "ü 日本 \"$HOME\"\n" {
		s.t.Errorf("unicode: %q", got)
	}
	cmd := s.sb.Command(s.t.Context(), "/bin/sh", "-c", "echo out; echo err >&2; exit 3")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	exit, ok := errors.AsType[*sandboxfn.ExitError](cmd.Run())
	if !ok || exit.ExitCode != 3 || stdout.String() != "out\n" || stderr.String() != "err\n" {
		s.t.Errorf("exit status: %+v, %q, %q", exit, &stdout, &stderr)
	}
	const size = 8 << 20
	out, err := s.sb.Shell(s.t.Context(), fmt.Sprintf("head -c %d /dev/zero", size)).Output()
	if err != nil || len(out) != size || len(bytes.Trim(out, "\x00")) != 0 {
		s.t.Errorf("large output: %d bytes, %v", len(out), err)
	}
	args := []string{"", "a b", "*", "'\"$X`", "ü\n"}
	out, err = s.sb.Command(s.t.Context(), "printf", append([]string{`[%s]`}, args...)...).Output()
	if want := "[" + strings.Join(args, "][") + "]"; err != nil || string(out) != want {
		s.t.Errorf("arguments: %q, %v, want %q", out, err, want)
	}
	_, err = s.sb.Command(s.t.Context(), "no-such-program").Output()
	if !errors.Is(err, sandboxfn.ErrCommandNotFound) {
		s.t.Errorf("a program that is not there: %v", err)
	}
}

func (s *clientSuite) input() {
	data := bytes.Repeat([]byte("0123456789abcde\xff"), 64<<10) // 1 MiB
	cmd := s.sb.Command(s.t.Context(), "cat")
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.Output()
	if err != nil || !bytes.Equal(out, data) {
		s.t.Errorf("1 MiB through cat: %d bytes, %v", len(out), err)
	}
	cmd = s.sb.Command(s.t.Context(), "cat")
	if out, err := cmd.Output(); err != nil || len(out) != 0 {
		s.t.Errorf("no input: %q, %v", out, err)
	}
	cmd = s.sb.Shell(s.t.Context(), `while read -r l; do echo "got $l"; done; echo end`)
	in, err := cmd.StdinPipe()
	s.must(err)
	pipe, err := cmd.StdoutPipe()
	s.must(err)
	s.must(cmd.Start())
	buf := make([]byte, 100)
	for _, l := range []string{"one", "two"} {
		_, err := io.WriteString(in, l+"\n")
		s.must(err)
		n, err := pipe.Read(buf)
		if err != nil || string(buf[:n]) != "got "+l+"\n" {
			s.t.Fatalf("answer to %s: %q, %v", l, buf[:n], err)
		}
	}
	s.must(in.Close())
	rest, err := io.ReadAll(pipe)
	if err != nil || string(rest) != "end\n" {
		s.t.Errorf("after the end of input: %q, %v", rest, err)
	}
	s.must(cmd.Wait())
}

func (s *clientSuite) environment() {
	cmd := s.sb.Shell(s.t.Context(), `echo "$FROM_CREATE|$OF_COMMAND|$(pwd)"`)
	cmd.Env = []string{"OF_COMMAND=x=y \"z\""}
	cmd.Dir = "/tmp"
	out, err := cmd.Output()
	if want := "a b|x=y \"z\"|/tmp\n"; err != nil || string(out) != want {
		s.t.Errorf("%q, %v, want %q", out, err, want)
	}
	cmd = s.sb.Command(s.t.Context(), "true")
	cmd.User = "no-such-user"
	if err := cmd.Run(); !errors.Is(err, sandboxfn.ErrUserNotAvailable) {
		s.t.Errorf("a user that is not there: %v", err)
	}
	cmd = s.sb.Command(s.t.Context(), "true")
	cmd.Dir = "/no/such/dir"
	if err := cmd.Run(); errdefs.CodeOf(err) != "E3012" {
		s.t.Errorf("a directory that is not there: %v", err)
	}
}

// ends: a timeout, a cancelled context and a signal each end the whole tree.
func (s *clientSuite) ends() {
	const tree = `sleep 987 & sleep 987`
	left := func() string {
		return s.shell(`for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline 2>/dev/null | grep '^sleep 987 ' ; done; true`)
	}
	gone := func(what string) {
		s.t.Helper()
		for end := time.Now().Add(20 * time.Second); left() != ""; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				s.t.Errorf("after %s there still is %q", what, left())
				return
			}
		}
	}
	cmd := s.sb.Shell(s.t.Context(), tree)
	cmd.Timeout = 500 * time.Millisecond
	if err := cmd.Run(); !errors.Is(err, sandboxfn.ErrCommandTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		s.t.Errorf("timeout: %v", err)
	}
	gone("a timeout")

	ctx, cancel := context.WithCancel(s.t.Context())
	cmd = s.sb.Shell(ctx, tree)
	s.must(cmd.Start())
	cancel()
	if err := cmd.Wait(); !errors.Is(err, context.Canceled) {
		s.t.Errorf("cancel: %v", err)
	}
	gone("a cancelled context")

	cmd = s.sb.Shell(s.t.Context(), tree)
	s.must(cmd.Start())
	s.must(cmd.Process.Kill())
	if exit, ok := errors.AsType[*sandboxfn.ExitError](cmd.Wait()); !ok || exit.ExitCode != -1 || exit.Signal == "" {
		s.t.Errorf("kill: %+v", exit)
	}
	gone("a kill")
}

// background: a detached command can be found again and followed.
func (s *clientSuite) background() {
	goOn := s.dir() + "/on"
	cmd := s.sb.Shell(s.t.Context(), "until [ -e "+goOn+" ]; do sleep 0.1; done; echo later; exit 5")
	cmd.Detach = true
	s.must(cmd.Start())
	list, err := s.sb.Processes(s.t.Context())
	s.must(err)
	found := false
	for _, p := range list {
		found = found || p.Pid == cmd.Process.Pid
	}
	if !found {
		s.t.Errorf("process %d is not in the list %+v", cmd.Process.Pid, list)
	}
	follow := s.sb.Attach(s.t.Context(), cmd.Process.Pid)
	var out bytes.Buffer
	follow.Stdout = &out
	s.must(follow.Start())
	s.must(s.sb.FS(s.t.Context()).WriteFile(goOn, nil, 0o644))
	err = follow.Wait()
	if exit, ok := errors.AsType[*sandboxfn.ExitError](err); !ok || exit.ExitCode != 5 || out.String() != "later\n" {
		s.t.Errorf("followed: %q, %v", &out, err)
	}
	if exit, ok := errors.AsType[*sandboxfn.ExitError](cmd.Wait()); !ok || exit.ExitCode != 5 {
		s.t.Errorf("waited: %+v", exit)
	}
}

// life: what the client says of the sandbox, and how handles to it end.
func (s *clientSuite) life() {
	ctx := s.t.Context()
	info, err := s.sb.Info(ctx)
	s.must(err)
	if info.ID != s.sb.ID() || info.State != sandboxfn.StateRunning || info.Provider != s.c.Provider() {
		s.t.Errorf("%+v", info)
	}
	end, err := s.sb.SetLifetime(ctx, 20*time.Minute)
	if left := time.Until(end); err != nil || left < 19*time.Minute || left > 21*time.Minute {
		s.t.Errorf("ends in %v, %v", left, err)
	}
	mark := map[string]string{"clientsuite": fmt.Sprint(time.Now().UnixNano())}
	sb, err := s.c.Create(ctx, &sandboxfn.CreateOptions{Lifetime: 5 * time.Minute, Metadata: mark})
	s.must(err)
	for stop := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		n := 0
		for info, err := range s.c.List(ctx, &sandboxfn.ListOptions{Metadata: mark}) {
			s.must(err)
			if info.ID == sb.ID() {
				n++
			}
		}
		if n == 1 {
			break
		}
		if time.Now().After(stop) {
			s.t.Fatalf("the sandbox is %d times in the list", n)
		}
	}
	other, err := s.c.Connect(ctx, sb.ID(), nil)
	s.must(err)
	if out, err := other.Shell(ctx, "echo hi").Output(); err != nil || string(out) != "hi\n" {
		s.t.Errorf("through another handle: %q, %v", out, err)
	}
	s.must(s.c.Kill(ctx, sb.ID()))
	if err := other.Command(ctx, "true").Run(); !errors.Is(err, errdefs.ErrCreate) {
		s.t.Errorf("a command in a sandbox that was killed: %v", err)
	}
	if _, err := s.c.Connect(ctx, sb.ID(), nil); !errors.Is(err, errdefs.ErrCreate) {
		s.t.Errorf("connect to a sandbox that was killed: %v", err)
	}
	s.must(s.c.Kill(ctx, sb.ID()))
	s.must(other.Close())
	s.must(sb.Close())
	s.must(sb.Close())
}

func (s *clientSuite) pause() {
	ctx := s.t.Context()
	before := s.shell(`sleep 300 >/dev/null 2>&1 & echo $!`)
	err := s.sb.Pause(ctx)
	if errors.Is(err, sandboxfn.ErrNotSupported) {
		s.t.Skip(err)
	}
	s.must(err)
	if err := s.sb.Command(ctx, "true").Run(); !errors.Is(err, sandboxfn.ErrPaused) {
		s.t.Errorf("a command in a paused sandbox: %v", err)
	}
	if err := s.sb.Pause(ctx); !errors.Is(err, sandboxfn.ErrPaused) {
		s.t.Errorf("a second pause: %v", err)
	}
	s.must(s.sb.Resume(ctx))
	s.must(s.sb.Resume(ctx))
	s.shell("kill -0 " + strings.TrimSpace(before)) // it lives
}
