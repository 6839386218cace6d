package sandboxfn

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestCommand(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		ctx := t.Context()
		t.Run("output", func(t *testing.T) {
			out, err := sb.Command(ctx, "printf", "%s|", "a b", "c").Output()
			if got, want := string(out), "a b|c|"; got != want || err != nil {
				t.Errorf("got %q, %v; want %q", got, err, want)
			}
		})
		t.Run("nothing printed is empty, not nil", func(t *testing.T) {
			out, err := sb.Command(ctx, "true").Output()
			if out == nil || len(out) != 0 || err != nil {
				t.Errorf("got %v, %v", out, err)
			}
		})
		t.Run("shell", func(t *testing.T) {
			out, err := sb.Shell(ctx, "echo 1; echo 2 | cat; exit 0").Output()
			if got, want := string(out), "1\n2\n"; got != want || err != nil {
				t.Errorf("got %q, %v; want %q", got, err, want)
			}
		})
		t.Run("streams are separate and exact", func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			cmd := sb.Shell(ctx, `printf 'v\000\377\n'; printf 'w1\nw2' >&2`)
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			if err := cmd.Run(); err != nil {
				t.Fatal(err)
			}
			if stdout.String() != "v\x00\xff\n" || stderr.String() != "w1\nw2" {
				t.Errorf("got %q and %q", stdout.String(), stderr.String())
			}
		})
		t.Run("combined", func(t *testing.T) {
			out, err := sb.Shell(ctx, "echo a; sleep 0.1; echo b >&2").CombinedOutput()
			if string(out) != "a\nb\n" || err != nil {
				t.Errorf("got %q, %v", out, err)
			}
		})
		t.Run("exit status", func(t *testing.T) {
			_, err := sb.Shell(ctx, "echo why >&2; exit 7").Output()
			e, ok := errors.AsType[*ExitError](err)
			if !ok || e.ExitCode != 7 || e.Signal != "" || string(e.Stderr) != "why\n" || e.Pid == 0 {
				t.Fatalf("got %#v", err)
			}
			if !errors.Is(err, ErrExec) || CodeOf(err) != "E3002" || !strings.Contains(err.Error(), "exit status 7") {
				t.Errorf("got %v", err)
			}
		})
		t.Run("signal", func(t *testing.T) {
			err := sb.Shell(ctx, "kill -TERM $$").Run()
			if e, ok := errors.AsType[*ExitError](err); !ok || e.ExitCode != -1 || e.Signal != "terminated" {
				t.Errorf("got %#v", err)
			}
		})
		t.Run("directory", func(t *testing.T) { testDirectory(t, sb) })
		t.Run("environment", func(t *testing.T) {
			t.Setenv("HOST_SECRET", "x")
			cmd := sb.Shell(ctx, `echo "$A|$B|$HOST_SECRET"`)
			cmd.Env = []string{"A=1", "B=x=y"}
			if out, err := cmd.Output(); string(out) != "1|x=y|\n" || err != nil {
				t.Errorf("got %q, %v", out, err)
			}
		})
		t.Run("not runnable", func(t *testing.T) { testNotRunnable(t, sb) })
		t.Run("unknown user", func(t *testing.T) {
			cmd := sb.Command(ctx, "id")
			cmd.User = "nobody-of-that-name"
			if err := cmd.Run(); !errors.Is(err, ErrUserNotAvailable) {
				t.Errorf("got %v", err)
			}
		})
		t.Run("refused", func(t *testing.T) { testRefused(t, sb) })
		t.Run("long script", func(t *testing.T) {
			var b strings.Builder
			b.WriteString("cat <<'X'\n")
			for i := 0; b.Len() < 300<<10; i++ {
				fmt.Fprintf(&b, "line %d — “quoted” $x `y`\n", i)
			}
			want := b.String()[len("cat <<'X'\n"):]
			b.WriteString("X\necho $# >&2\n")
			var errs bytes.Buffer
			cmd := sb.Shell(ctx, b.String())
			cmd.Stderr = &errs
			out, err := cmd.Output()
			if err != nil || string(out) != want || errs.String() != "0\n" {
				t.Errorf("got %d bytes of %d, %q, %v", len(out), len(want), errs.String(), err)
			}
		})
	})
}

func testDirectory(t *testing.T, sb *Sandbox) {
	ctx := t.Context()
	home, err := sb.Shell(ctx, "cd ~; pwd -P").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ dir, want string }{{"/", "/"}, {"~", strings.TrimSpace(string(home))}, {"/usr/../", "/"}} {
		cmd := sb.Command(ctx, "pwd", "-P")
		cmd.Dir = c.dir
		if out, err := cmd.Output(); strings.TrimSpace(string(out)) != c.want || err != nil {
			t.Errorf("Dir %q: got %q, %v; want %q", c.dir, out, err, c.want)
		}
	}
	for _, dir := range []string{"/not/there", "/etc/passwd"} {
		cmd := sb.Shell(ctx, "echo ran > /tmp/ran-in-the-wrong-place")
		cmd.Dir = dir
		if err := cmd.Run(); CodeOf(err) != "E3012" || !strings.Contains(err.Error(), dir) {
			t.Errorf("Dir %q: got %v", dir, err)
		}
	}
	if there, err := sb.FS(ctx).Exists("/tmp/ran-in-the-wrong-place"); there || err != nil {
		t.Errorf("the command ran: %v, %v", there, err)
	}
}

func testNotRunnable(t *testing.T, sb *Sandbox) {
	ctx := t.Context()
	f, dir := sb.FS(ctx), workDir(t, sb)
	for name, c := range map[string]struct {
		content string
		perm    os.FileMode
	}{"plain.txt": {"no program\n", 0o644}, "badinterp": {"#!/no/such/interpreter\n", 0o755}} {
		if err := f.WriteFile(dir+"/"+name, []byte(c.content), c.perm); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"no-such-program-here", "/no/such/program", "./plain.txt", "./badinterp"} {
		cmd := sb.Command(ctx, name)
		cmd.Dir = dir
		err := cmd.Run()
		if !errors.Is(err, ErrCommandNotFound) || !strings.Contains(err.Error(), strings.TrimPrefix(name, "./")) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for script, want := range map[string][]int{
		"no-such-program-here": {127}, "/no/such/program": {127}, "./plain.txt": {126}, "./badinterp": {126, 127},
	} {
		cmd := sb.Shell(ctx, script)
		cmd.Dir = dir
		err := cmd.Run()
		e, ok := errors.AsType[*ExitError](err)
		if !ok || e.ExitCode != want[0] && e.ExitCode != want[len(want)-1] || len(e.Stderr) == 0 {
			t.Errorf("shell %s: got %v", script, err)
		}
	}
	if out, err := sb.Command(ctx, "echo", "ok").Output(); string(out) != "ok\n" || err != nil {
		t.Errorf("afterwards: %q, %v", out, err)
	}
}

func testRefused(t *testing.T, sb *Sandbox) {
	ctx := t.Context()
	for name, c := range map[string]struct {
		cmd  *Cmd
		text string
	}{
		"NUL in an argument":     {sb.Command(ctx, "echo", "a", "b\x00c"), "Args[2]"},
		"NUL in a script":        {sb.Shell(ctx, "echo\x00"), "the script"},
		"NUL in the path":        {sb.Command(ctx, "ec\x00ho"), "Path"},
		"NUL in the directory":   {func() *Cmd { c := sb.Command(ctx, "pwd"); c.Dir = "a\x00"; return c }(), "Dir"},
		"NUL in a variable":      {func() *Cmd { c := sb.Command(ctx, "env"); c.Env = []string{"A=\x00"}; return c }(), "Env"},
		"variable without a '='": {func() *Cmd { c := sb.Command(ctx, "env"); c.Env = []string{"A"}; return c }(), "Env"},
		"empty path":             {sb.Command(ctx, ""), "Path"},
		"invalid UTF-8":          {sb.Command(ctx, "echo", "\xff"), "Args[1]"},
		"huge argument":          {sb.Command(ctx, "echo", strings.Repeat("x", 200<<10)), "Args[1]"},
		"negative timeout":       {func() *Cmd { c := sb.Command(ctx, "true"); c.Timeout = -time.Second; return c }(), "Timeout"},
		"colon in the user":      {func() *Cmd { c := sb.Command(ctx, "true"); c.User = "a:b"; return c }(), "User"},
		"no process":             {sb.Attach(ctx, -1), "process"},
	} {
		err := c.cmd.Run()
		if CodeOf(err) != "E3011" || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// A command that leaves a child behind ends when it ends itself, and the child
// lives on and may go on printing.
func TestCommandLeavesChild(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		ctx := t.Context()
		for _, script := range []string{
			`sleep 300 & echo $!; echo started`,
			`(while :; do echo tick; sleep 0.1; done) & echo $!; echo started`,
		} {
			start := time.Now()
			out, err := sb.Shell(ctx, script).Output()
			if err != nil || !strings.Contains(string(out), "started\n") {
				t.Fatalf("got %q, %v", out, err)
			}
			if d := time.Since(start); d > 20*time.Second {
				t.Errorf("took %v", d)
			}
			pid, _, _ := strings.Cut(strings.ReplaceAll(string(out), "tick\n", ""), "\n")
			time.Sleep(300 * time.Millisecond)
			if err := sb.Command(ctx, "kill", "-0", pid).Run(); err != nil {
				t.Errorf("the child is gone: %v", err)
			}
			sb.Command(ctx, "kill", "-KILL", pid).Run()
		}
	})
}

// A kill reaches everything a command started, also what left its session.
func TestKillReachesTree(t *testing.T) {
	need(t, "setsid")
	onEach(t, func(t *testing.T, sb *Sandbox) {
		ctx := t.Context()
		mark := "3" + strconv.Itoa(rand.IntN(1e8))
		cmd := sb.Shell(ctx, "sleep "+mark+" & setsid sleep "+mark+" & echo up; wait; sleep "+mark)
		out, _ := cmd.StdoutPipe()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		io.ReadFull(out, make([]byte, 3))
		waitFor(t, patience, "sleeps running", func() bool { return count(t, sb, mark) >= 3 })
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		err := cmd.Wait()
		if e, ok := errors.AsType[*ExitError](err); !ok || e.Signal != "killed" {
			t.Errorf("got %v", err)
		}
		waitFor(t, patience, "nothing left", func() bool { return count(t, sb, mark) == 0 })
		if err := cmd.Process.Kill(); !errors.Is(err, os.ErrProcessDone) || !errors.Is(err, ErrProcessGone) {
			t.Errorf("second kill: %v", err)
		}
	})
}

// count is how many processes have mark in their command line.
func count(t *testing.T, sb *Sandbox, mark string) int {
	t.Helper()
	out, err := sb.Shell(context.WithoutCancel(t.Context()), `for f in /proc/[0-9]*/cmdline; do tr '\000' ' ' < $f; echo; done 2>/dev/null | grep -c -- '`+mark[:1]+`[`+mark[1:2]+`]`+mark[2:]+`'`).Output()
	if e, ok := errors.AsType[*ExitError](err); err != nil && (!ok || e.ExitCode != 1) {
		t.Fatal(err)
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(out)))
	return n
}

func TestTimeout(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		ctx := t.Context()
		dir := workDir(t, sb)
		cmd := sb.Shell(ctx, `trap "" TERM; echo so far; sleep 60; touch late`)
		cmd.Dir, cmd.Timeout = dir, time.Second
		start := time.Now()
		out, err := cmd.Output()
		if d := time.Since(start); d < time.Second || d > 30*time.Second { // the command sleeps for twice as long
			t.Errorf("took %v", d)
		}
		if !errors.Is(err, ErrCommandTimeout) || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrTimeout) {
			t.Errorf("got %v", err)
		}
		if string(out) != "so far\n" {
			t.Errorf("output %q", out)
		}
		list, err := sb.Processes(ctx)
		for i := 0; len(list) > 0 && err == nil && i < 1000; i++ {
			time.Sleep(10 * time.Millisecond)
			list, err = sb.Processes(ctx)
		}
		if err != nil || len(list) != 0 {
			t.Errorf("left: %v, %v", list, err)
		}
		if there, err := sb.FS(ctx).Exists(dir + "/late"); there || err != nil {
			t.Errorf("late: %v, %v", there, err)
		}
	})
}

func TestCancel(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		reason := errors.New("changed my mind")
		ctx, cancel := context.WithCancelCause(t.Context())
		cmd := sb.Shell(ctx, `trap "" TERM INT; echo up; sleep 100 & wait; sleep 100`)
		out, _ := cmd.StdoutPipe()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		io.ReadFull(out, make([]byte, 3))
		cancel(reason)
		start := time.Now()
		err := cmd.Wait()
		if d := time.Since(start); d > 20*time.Second {
			t.Errorf("took %v", d)
		}
		if !errors.Is(err, reason) || !errors.Is(err, context.Canceled) || CodeOf(err) != "E5004" {
			t.Errorf("got %v", err)
		}
		waitFor(t, patience, "nothing left", func() bool {
			list, err := sb.Processes(t.Context())
			return err == nil && len(list) == 0
		})
		t.Run("deadline", func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			err := sb.Command(ctx, "sleep", "100").Run()
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrTimeout) || errors.Is(err, ErrCommandTimeout) {
				t.Errorf("got %v", err)
			}
		})
		t.Run("before start", func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := sb.Command(ctx, "true").Run(); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		})
	})
}

// The request timeout does not bound a command.
func TestRequestTimeoutIsNotCommandTimeout(t *testing.T) {
	t.Parallel() // it waits
	sb := create(t, hostClient(t, &hostProvider{}, &ClientOptions{RequestTimeout: 2 * time.Second}), nil)
	out, err := sb.Shell(t.Context(), "sleep 3; echo ok").Output()
	if string(out) != "ok\n" || err != nil {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestStdin(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		ctx := t.Context()
		t.Run("none is empty", func(t *testing.T) {
			out, err := sb.Command(ctx, "cat").Output()
			if len(out) != 0 || err != nil {
				t.Errorf("got %q, %v", out, err)
			}
		})
		t.Run("reader", func(t *testing.T) {
			cmd := sb.Command(ctx, "sort")
			cmd.Stdin = strings.NewReader("b\na\n")
			out, err := cmd.Output()
			if string(out) != "a\nb\n" || err != nil {
				t.Errorf("got %q, %v", out, err)
			}
		})
		t.Run("10 MiB", func(t *testing.T) {
			data := make([]byte, 10<<20)
			rand.NewChaCha8([32]byte{1}).Read(data)
			cmd := sb.Command(ctx, "cat")
			cmd.Stdin = bytes.NewReader(data)
			out, err := cmd.Output()
			if err != nil || sha256.Sum256(out) != sha256.Sum256(data) {
				t.Errorf("got %d bytes, %v", len(out), err)
			}
		})
		t.Run("pipe", func(t *testing.T) {
			cmd := sb.Command(ctx, "cat")
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			wg.Go(func() { // may begin before Start
				fmt.Fprint(in, "one\n")
				fmt.Fprint(in, "two\n")
				in.Close()
				if _, err := in.Write([]byte("x")); CodeOf(err) != "E3013" || !errors.Is(err, io.ErrClosedPipe) {
					t.Errorf("write after close: %v", err)
				}
			})
			out, err := cmd.Output()
			wg.Wait()
			if string(out) != "one\ntwo\n" || err != nil {
				t.Errorf("got %q, %v", out, err)
			}
		})
		t.Run("command that ended", func(t *testing.T) {
			cmd := sb.Command(ctx, "true")
			in, _ := cmd.StdinPipe()
			if err := cmd.Run(); err != nil {
				t.Fatal(err)
			}
			if _, err := in.Write([]byte("x")); !errors.Is(err, ErrExec) {
				t.Errorf("got %v", err)
			}
		})
		t.Run("command that does not read", func(t *testing.T) {
			cmd := sb.Shell(ctx, "exec <&-; sleep 0.3; exit 3")
			cmd.Stdin = io.LimitReader(rand.NewChaCha8([32]byte{}), 5<<20)
			if e, ok := errors.AsType[*ExitError](cmd.Run()); !ok || e.ExitCode != 3 {
				t.Errorf("got %v", e)
			}
		})
		t.Run("reader that fails", func(t *testing.T) {
			bad := errors.New("bad disk")
			cmd := sb.Command(ctx, "cat")
			cmd.Stdin = io.MultiReader(strings.NewReader("x"), failing{bad})
			if out, err := cmd.Output(); string(out) != "x" || !errors.Is(err, bad) {
				t.Errorf("got %q, %v", out, err)
			}
		})
		t.Run("reader that never returns", func(t *testing.T) {
			pr, pw := io.Pipe()
			defer pw.Close()
			cmd := sb.Command(ctx, "sleep", "0.1")
			cmd.Stdin = pr
			if err := cmd.Run(); err != nil {
				t.Error(err)
			}
		})
	})
}

// The last thing that a command reads has been taken, though the command ends
// before that is said.
func TestLastInput(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		for range 100 {
			cmd := sb.Shell(t.Context(), "read line")
			in, err := cmd.StdinPipe()
			must(t, err)
			must(t, cmd.Start())
			if _, err := io.WriteString(in, "line\n"); err != nil {
				t.Errorf("got %v", err)
			}
			must(t, cmd.Wait())
		}
	})
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error)  { return 0, f.err }
func (f failing) Write([]byte) (int, error) { return 0, f.err }

// Output arrives while the command runs, also without a newline: the command does
// not go on before it has been seen.
func TestOutputArrivesAtOnce(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		cmd := sb.Shell(t.Context(), `for i in 1 2 3; do printf "$i"; read answer || exit 3; done`)
		out, err := cmd.StdoutPipe()
		must(t, err)
		in, err := cmd.StdinPipe()
		must(t, err)
		must(t, cmd.Start())
		late := time.AfterFunc(patience, func() { in.Close() })
		defer late.Stop()
		buf := make([]byte, 64)
		for _, want := range []string{"1", "2", "3"} {
			n, err := out.Read(buf)
			if got := string(buf[:n]); got != want || err != nil {
				t.Fatalf("got %q, %v, want %q", got, err, want)
			}
			if _, err := io.WriteString(in, "seen\n"); err != nil {
				t.Fatal(err)
			}
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// A burst arrives whole, or bounded with the number of bytes left out.
func TestBurst(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		ctx := t.Context()
		const size = 64 << 20
		cmd := sb.Shell(ctx, "head -c 67108864 /dev/urandom | tee burst | sha256sum >&2; cat burst; rm burst")
		cmd.Dir = workDir(t, sb)
		var sum bytes.Buffer
		h := sha256.New()
		cmd.Stdout, cmd.Stderr = h, &sum
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%x", h.Sum(nil)); !strings.HasPrefix(sum.String(), got) {
			t.Errorf("digest %s, inside %s", got, sum.String())
		}
		cmd = sb.Shell(ctx, "printf first; head -c 67108864 /dev/zero; printf last")
		cmd.MaxOutput = 1 << 20
		out, err := cmd.Output()
		left := size + 9 - 1<<20
		if err != nil || !bytes.HasPrefix(out, []byte("first")) || !bytes.HasSuffix(out, []byte("last")) ||
			!bytes.Contains(out, fmt.Appendf(nil, "... %d bytes left out ...", left)) || len(out) > 1<<20+100 {
			t.Errorf("got %d bytes, %v", len(out), err)
		}
	})
}

// A pipe that is read slowly slows the command and loses nothing; one that is
// closed lets it go on.
func TestStdoutPipe(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		ctx := t.Context()
		cmd := sb.Shell(ctx, "head -c 8388608 /dev/zero; echo done >&2")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
		n, err := io.Copy(io.Discard, out)
		if n != 8<<20 || err != nil {
			t.Errorf("read %d, %v", n, err)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		cmd = sb.Shell(ctx, "head -c 8388608 /dev/zero")
		out, _ = cmd.StdoutPipe()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		out.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		if _, err := cmd.StdoutPipe(); CodeOf(err) != "E3011" {
			t.Errorf("pipe after start: %v", err)
		}
	})
}

// A command whose output was not read before its context ended has not
// succeeded, though it has exited with status 0 long before.
func TestStdoutPipeNotReadInTime(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cmd := sb.Shell(ctx, "head -c 1900000 /dev/zero") // pipe and runtime hold it together
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		time.AfterFunc(500*time.Millisecond, cancel) // where it is not over yet, it is killed
		if err := cmd.Wait(); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		n, err := io.Copy(io.Discard, out)
		if n == 1900000 || !errors.Is(err, context.Canceled) {
			t.Errorf("read %d, %v", n, err)
		}
	})
}

func TestWriterFails(t *testing.T) {
	sb := hostSandbox(t)
	bad := errors.New("disk full")
	cmd := sb.Shell(t.Context(), "head -c 1000000 /dev/zero; echo fine >&2")
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = failing{bad}, &stderr
	if err := cmd.Run(); !errors.Is(err, bad) || stderr.String() != "fine\n" {
		t.Errorf("got %v, %q", err, stderr.String())
	}
}

func TestProcesses(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		ctx := t.Context()
		cmd := sb.Command(ctx, "sleep", "100")
		cmd.Env, cmd.Dir = []string{"B=2", "A=1"}, "/"
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		list, err := sb.Processes(ctx)
		if err != nil || len(list) != 1 {
			t.Fatalf("got %v, %v", list, err)
		}
		p := list[0]
		if p.Pid != cmd.Process.Pid || p.Path != "sleep" || len(p.Args) != 2 || p.Args[1] != "100" || p.Dir != "/" || fmt.Sprint(p.Env) != "[A=1 B=2]" {
			t.Errorf("got %+v", p)
		}
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if e, ok := errors.AsType[*ExitError](cmd.Wait()); !ok || e.Signal != "interrupt" {
			t.Errorf("got %v", e)
		}
		if err := cmd.Process.Signal(syscall.SIGINT); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("signal to the dead: %v", err)
		}
	})
}

// A process goes on when its watcher leaves, and another gets everything that
// is still held, and the status, also a while after the end.
func TestAttach(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		ctx, leave := context.WithCancel(t.Context())
		cmd := sb.Shell(ctx, "for i in 1 2 3 4 5; do echo $i; sleep 0.2; done; exit 4")
		cmd.Detach = true
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		pid := cmd.Process.Pid
		time.Sleep(300 * time.Millisecond)
		leave()
		second := sb.Attach(t.Context(), pid)
		out, err := second.Output()
		if e, ok := errors.AsType[*ExitError](err); !ok || e.ExitCode != 4 || string(out) != "1\n2\n3\n4\n5\n" {
			t.Errorf("second watcher: %q, %v", out, err)
		}
		cmd.Wait()
		out, err = sb.Attach(t.Context(), pid).Output()
		if e, ok := errors.AsType[*ExitError](err); !ok || e.ExitCode != 4 || string(out) != "1\n2\n3\n4\n5\n" {
			t.Errorf("after the end: %q, %v", out, err)
		}
		if err := sb.Attach(t.Context(), 999999).Run(); !errors.Is(err, ErrProcessGone) {
			t.Errorf("no such process: %v", err)
		}
		t.Run("input", func(t *testing.T) {
			ctx, leave := context.WithCancel(t.Context())
			first := sb.Shell(ctx, "cat; echo end")
			first.Detach = true
			in, err := first.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := first.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(in, "one\n"); err != nil {
				t.Error(err)
			}
			leave()
			second := sb.Attach(t.Context(), first.Process.Pid)
			if in, err = second.StdinPipe(); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			second.Stdout = &out
			if err := second.Start(); err != nil {
				t.Fatal(err)
			}
			_, err = io.WriteString(in, "two\n")
			if err := errors.Join(err, in.Close(), second.Wait(), first.Wait()); err != nil || out.String() != "one\ntwo\nend\n" {
				t.Errorf("got %q, %v", out.String(), err)
			}
		})
		t.Run("leaving ends nothing", func(t *testing.T) {
			run := sb.Command(t.Context(), "sleep", "100")
			if err := run.Start(); err != nil {
				t.Fatal(err)
			}
			ctx, leave := context.WithCancel(t.Context())
			watch := sb.Attach(ctx, run.Process.Pid)
			if err := watch.Start(); err != nil {
				t.Fatal(err)
			}
			leave()
			if err := watch.Wait(); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			if list, _ := sb.Processes(t.Context()); len(list) != 1 {
				t.Errorf("the process is gone")
			}
			run.Process.Kill()
			run.Wait()
		})
	})
}

// Acting on a process the moment it starts never fails, deadlocks or leaves
// anything behind.
func TestActAtStart(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		rounds := 500
		if testing.Short() || sb.Provider() == "host" { // a kill looks at every process of the machine
			rounds = 50
		}
		for range rounds {
			cmd := sb.Command(t.Context(), "sleep", "100")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if e, ok := errors.AsType[*ExitError](cmd.Wait()); !ok || e.Signal != "killed" {
				t.Fatalf("got %v", e)
			}
		}
		for range rounds {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(5000))*time.Microsecond)
			if err := sb.Command(ctx, "sleep", "100").Run(); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("got %v", err)
			}
			cancel()
		}
		waitFor(t, patience, "no process left", func() bool {
			list, err := sb.Processes(t.Context())
			return err == nil && len(list) == 0
		})
	})
}

func TestManyCommands(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		n := 400
		if testing.Short() {
			n = 50
		}
		start := time.Now()
		cmds := make([]*Cmd, n)
		var wg sync.WaitGroup
		for i := range cmds {
			cmds[i] = sb.Command(t.Context(), "sleep", "1000")
			wg.Go(func() {
				if err := cmds[i].Start(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
		started := time.Since(start)
		one := time.Now()
		if out, err := sb.Command(t.Context(), "echo", "ok").Output(); string(out) != "ok\n" || err != nil {
			t.Errorf("got %q, %v", out, err)
		}
		short := time.Since(one)
		closing := time.Now()
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
		for _, c := range cmds {
			err := c.Wait()
			if e, ok := errors.AsType[*ExitError](err); !errors.Is(err, ErrKilled) && (!ok || e.Signal != "killed") {
				t.Errorf("after close: %v", err)
				break
			}
		}
		// Without the race detector, on a machine of its own: 1 s, 10 ms and 1 s.
		took := fmt.Sprintf("%d started in %v, one more in %v, closed in %v", n, started, short, time.Since(closing))
		t.Log(took)
		if started > time.Minute || short > patience || time.Since(closing) > time.Minute {
			t.Error(took)
		}
	})
}

// Something in between that drops idle connections does not end a command that
// shows life; without that the loss is noticed, and the command can be found again.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		keepAlive time.Duration
	}{{"kept alive", time.Second}, {"not kept alive", -1}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			// Idle for 4 s: once during the command, and with 2 s to spare.
			p := &hostProvider{wrap: func(c net.Conn) net.Conn { return newIdleConn(c, 4*time.Second) }}
			sb := create(t, hostClient(t, p, &ClientOptions{KeepAlive: c.keepAlive}), nil)
			cmd := sb.Shell(t.Context(), "sleep 6; echo ok")
			out, err := cmd.Output()
			if c.keepAlive > 0 {
				if string(out) != "ok\n" || err != nil {
					t.Errorf("got %q, %v", out, err)
				}
				return
			}
			if !errors.Is(err, ErrConnectionLost) {
				t.Errorf("got %q, %v", out, err)
			}
			again := sb.Attach(t.Context(), cmd.Process.Pid)
			if out, err := again.Output(); string(out) != "ok\n" || err != nil {
				t.Errorf("attached: %q, %v", out, err)
			}
		})
	}
}

// idleConn is closed when nothing moves for a while.
type idleConn struct {
	net.Conn
	after time.Duration
	timer *time.Timer
}

func newIdleConn(c net.Conn, after time.Duration) *idleConn {
	return &idleConn{Conn: c, after: after, timer: time.AfterFunc(after, func() { c.Close() })}
}

func (c *idleConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.timer.Reset(c.after)
	return n, err
}

func (c *idleConn) Write(p []byte) (int, error) {
	c.timer.Reset(c.after)
	return c.Conn.Write(p)
}

func (c *idleConn) Close() error {
	c.timer.Stop()
	return c.Conn.Close()
}

func TestCmdOfNoSandbox(t *testing.T) {
	if err := new(Cmd).Run(); CodeOf(err) != "E3011" {
		t.Errorf("got %v", err)
	}
}

// Whoever a command runs as, everything about that user agrees.
func TestUsers(t *testing.T) {
	sb := localSandbox(t)
	for _, user := range []string{"", "root"} {
		cmd := sb.Shell(t.Context(), `echo "$USER $HOME $(pwd)"; echo "$(id -un) $(cd ~; pwd) $HOME"; touch "$HOME/mine"; stat -c %U "$HOME/mine"; id -un; groups`)
		cmd.User = user
		out, err := cmd.Output()
		if user == "root" && errors.Is(err, ErrUserNotAvailable) {
			continue // the sandbox of a user who may not switch has one user
		}
		lines := strings.Split(string(out), "\n")
		if err != nil || len(lines) < 5 || lines[0] != lines[1] || lines[2] != lines[3] || user != "" && lines[3] != user || lines[4] == "" {
			t.Errorf("%q: %q, %v", user, out, err)
		}
	}
}

// A command that writes more than the sandbox may says so.
func TestDiskLimit(t *testing.T) {
	sb := localSandboxWith(t, &CreateOptions{Scratch: "disk", Disk: 16 * MiB})
	err := sb.Command(t.Context(), "sh", "-c", "cd; i=0; while true; do head -c 1M /dev/zero > f$i; i=$((i+1)); done").Run()
	if e, ok := errors.AsType[*ExitError](err); !ok || !errors.Is(err, ErrNoSpace) || e.Signal != "killed" {
		t.Errorf("got %v", err)
	}
	if err := sb.FS(t.Context()).WriteFile("/home/user/more", make([]byte, 1<<20), 0o644); !errors.Is(err, ErrNoSpace) {
		t.Errorf("upload: %v", err)
	}
}

// A command at the memory limit of its sandbox says so, and the sandbox lives.
func TestMemoryLimit(t *testing.T) {
	sb := localSandboxWith(t, &CreateOptions{Memory: 256 * MiB})
	rep, err := sb.Report(t.Context())
	must(t, err)
	if rep.Limits["memory"] == "none" || rep.Limits["memory"] == "" {
		t.Skipf("memory cannot be limited here: %+v", rep.Degraded)
	}
	err = sb.Command(t.Context(), "tail", "/dev/zero").Run()
	if e, ok := errors.AsType[*ExitError](err); !ok || !errors.Is(err, ErrMemoryLimit) || e.Signal != "killed" {
		t.Errorf("got %v", err)
	}
	if out, err := sb.Command(t.Context(), "echo", "ok").Output(); string(out) != "ok\n" || err != nil {
		t.Errorf("afterwards: %q, %v", out, err)
	}
}
