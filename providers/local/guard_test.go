//go:build linux

package local

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func init() { roles["stuck"] = stuckRole }

const envStuck = "LOCAL_TEST_STUCK"

// stuckRole starts a guard and then stops its whole Go runtime: the only
// processor is held by a system call that the runtime knows nothing of.
func stuckRole() error {
	runtime.GOMAXPROCS(1)
	note, err := os.OpenFile(os.Getenv(envState), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	deadline, lifeline := bootAfter(time.Hour), os.Stdin
	if os.Getenv(envStuck) == endExpired {
		deadline = bootAfter(100 * time.Millisecond)
	}
	g, err := startGuard(unknownEnd, note)
	if err != nil {
		return err
	}
	time.Sleep(20 * time.Millisecond) // it waits by now
	if err := errors.Join(g.expire(deadline), g.follow(lifeline)); err != nil {
		return err
	}
	os.Stdout.Close()
	for {
		syscall.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

// The guard ends a process whose Go runtime is stuck, at the end of its
// lifetime and when its client is gone.
func TestGuardEnds(t *testing.T) {
	for _, why := range []string{endExpired, endClient} {
		t.Run(why, func(t *testing.T) {
			t.Parallel()
			note := filepath.Join(t.TempDir(), "end")
			if err := os.WriteFile(note, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := role(t, "stuck", envState+"="+note, envStuck+"="+why)
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now() // its lifetime begins after that
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := out.Read(make([]byte, 1)); err != io.EOF {
				t.Fatal(err)
			}
			if why == endClient {
				start = time.Now()
				in.Close()
			}
			done := make(chan error, 1)
			go func() { done <- cmd.Wait() }()
			select {
			case err := <-done:
				if took := time.Since(start); err != nil || took < guardGrace-time.Second/2 {
					t.Errorf("after %v: %v", took, err)
				}
			case <-time.After(guardGrace + 20*time.Second):
				cmd.Process.Kill()
				t.Fatalf("it lives on: %v", <-done)
			}
			if b, _ := os.ReadFile(note); strings.TrimSpace(string(b)) != why {
				t.Errorf("the note says %q", b)
			}
		})
	}
}

// hostileUser is the one whose processes can reach the children of init for as
// long as possible.
func hostileUser() string {
	if mappingKind() == mapSingle {
		return "user"
	}
	return "root"
}

// Hostile code stops each process that comes into being, before its program
// runs if it can. Starts are answered all the same, other calls too, and the
// end of the lifetime and a kill hold.
func TestStoppedStarts(t *testing.T) {
	for _, attack := range []string{"stop starts once", "stop starts"} {
		t.Run(attack, func(t *testing.T) {
			t.Parallel()
			g := newTarget(t, netLoopback)
			stopAttack := g.attackMeanwhile(t, hostileUser(), attack)
			defer stopAttack()
			c := g.client(t)
			heldUp, longest := 0, time.Duration(0)
			for range scaled(10, 40, 200) {
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				s, err := c.Start(ctx, &envd.StartOptions{Path: "/bin/true", User: hostileUser()})
				switch {
				case err == nil:
					s.Close(nil)
				case errdefs.CodeOf(err) == "E3006" && strings.Contains(err.Error(), errHeldUp.Error()):
					heldUp++
				default:
					t.Fatalf("start: %v", err)
				}
				longest = max(longest, time.Since(start))
				if _, err := c.List(ctx, "/", 1); err != nil {
					t.Fatalf("list: %v", err)
				}
				cancel()
			}
			t.Logf("longest start %v, %d held up", longest, heldUp)
			if longest > 10*time.Second {
				t.Errorf("a start took %v", longest)
			}
			start := time.Now()
			if err := g.p.Kill(t.Context(), g.sb.ID); err != nil || time.Since(start) > 10*time.Second {
				t.Errorf("kill after %v: %v", time.Since(start), err)
			}
		})
	}
	t.Run("lifetime", func(t *testing.T) {
		t.Parallel()
		g := newTarget(t, netLoopback)
		defer g.attackMeanwhile(t, hostileUser(), "stop starts")()
		if _, err := g.p.SetLifetime(t.Context(), g.sb.ID, 2*time.Second); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		c := g.client(t)
		for {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			s, err := c.Start(ctx, &envd.StartOptions{Path: "/bin/true", User: hostileUser()})
			if err == nil {
				s.Close(nil)
			}
			cancel()
			if _, err := g.p.Get(t.Context(), g.sb.ID); errors.Is(err, errdefs.ErrExpired) {
				break
			}
			if time.Since(start) > 2*time.Second+guardGrace+10*time.Second {
				t.Fatal("it lives on")
			}
		}
	})
}

// client is a client of the data plane.
func (g *target) client(t *testing.T) *envd.Client {
	t.Helper()
	c, err := envd.New(&envd.Options{Dial: g.sb.Data.Dial, Token: g.sb.Data.Token.Reveal()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// attackMeanwhile starts an attack that goes on until it is ended.
func (g *target) attackMeanwhile(t *testing.T, user, attack string, args ...string) (end func()) {
	t.Helper()
	s, err := g.client(t).Start(t.Context(), &envd.StartOptions{Path: g.program, Env: g.attackEnv(attack, args...), User: user})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if ev, err := s.Next(); err != nil || ev.End != nil {
				return
			}
		}
	}()
	return func() {
		s.Close(nil)
		<-done
	}
}

// A stopped command that runs its program is none of the guard's business.
func TestGuardSparesCommands(t *testing.T) {
	sb := create(t, testProvider(t), providers.CreateRequest{})
	out, _ := sh(t, sb, `sh -c 'kill -STOP $$; echo no' &
		i=0; until grep -q '^State:.T' /proc/$!/status || [ $((i+=1)) = 200 ]; do sleep 0.1; done
		sleep 0.3; /bin/true; grep -c '^State:.T' /proc/$!/status; kill -9 $!`)
	if strings.TrimSpace(out) != "1" {
		t.Errorf("%q", out)
	}
}
