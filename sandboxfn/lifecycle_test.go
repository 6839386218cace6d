package sandboxfn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// A sandbox that is gone says why, and its handle is not tried again.
func TestGone(t *testing.T) {
	for _, c := range []struct {
		code   ErrorCode
		target error
	}{{"E2021", ErrExpired}, {"E2022", ErrKilled}, {"E2023", ErrCrashed}} {
		t.Run(string(c.code), func(t *testing.T) {
			p := &hostProvider{}
			sb := create(t, hostClient(t, p, nil), nil)
			must(t, sb.Command(t.Context(), "true").Run())
			must(t, p.stop(t.Context(), sb.ID(), c.code))
			f := sb.FS(t.Context())
			_, readErr := f.ReadFile("/etc/passwd")
			_, existsErr := f.Exists("/etc/passwd")
			_, listErr := sb.Processes(t.Context())
			_, infoErr := sb.Info(t.Context())
			for what, err := range map[string]error{
				"command": sb.Command(t.Context(), "true").Run(), "read": readErr, "exists": existsErr,
				"write": f.WriteFile("/tmp/x", nil, 0), "processes": listErr, "info": infoErr,
			} {
				if !errors.Is(err, c.target) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNetwork) {
					t.Errorf("%s: got %v", what, err)
				}
			}
			if sb.usable() == nil {
				t.Error("the handle would be used again")
			}
		})
	}
	t.Run("never existed", func(t *testing.T) {
		c := hostClient(t, &hostProvider{}, nil)
		if _, err := c.Connect(t.Context(), "nosuch", nil); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "nosuch") {
			t.Errorf("got %v", err)
		}
		if err := c.Kill(t.Context(), "nosuch"); err != nil {
			t.Errorf("kill: %v", err)
		}
	})
	t.Run("paused", func(t *testing.T) {
		p := &hostProvider{}
		sb := create(t, hostClient(t, p, nil), nil)
		p.mu.Lock()
		b := p.boxes[sb.ID()]
		b.box.State = providers.StatePaused
		p.mu.Unlock()
		must(t, b.srv.Shutdown(t.Context()))
		if err := sb.Command(t.Context(), "true").Run(); !errors.Is(err, ErrPaused) || sb.usable() != nil {
			t.Errorf("got %v", err)
		}
	})
	t.Run("unreachable but running", func(t *testing.T) {
		p := &hostProvider{}
		sb := create(t, hostClient(t, p, nil), nil)
		p.mu.Lock()
		srv := p.boxes[sb.ID()].srv
		p.mu.Unlock()
		must(t, srv.Shutdown(t.Context()))
		if err := sb.Command(t.Context(), "true").Run(); !errors.Is(err, ErrNetwork) {
			t.Errorf("got %v", err)
		}
	})
}

// While a command runs, the end of the sandbox is the command's end.
func TestGoneWhileRunning(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		cmd := sb.Command(t.Context(), "sleep", "100")
		must(t, cmd.Start())
		must(t, sb.Kill(t.Context()))
		err := cmd.Wait()
		if e, ok := errors.AsType[*ExitError](err); !errors.Is(err, ErrKilled) && (!ok || e.Signal != "killed") {
			t.Errorf("got %v", err)
		}
		if err := sb.Command(t.Context(), "true").Run(); !errors.Is(err, ErrKilled) {
			t.Errorf("afterwards: %v", err)
		}
		must(t, sb.Kill(t.Context()))
		must(t, sb.Close())
		must(t, sb.Close())
	})
}

func TestClose(t *testing.T) {
	t.Run("created ends, connected stays", func(t *testing.T) {
		p := &hostProvider{}
		c := hostClient(t, p, nil)
		sb := create(t, c, nil)
		other, err := c.Connect(t.Context(), sb.ID(), nil)
		must(t, err)
		cmd := other.Command(t.Context(), "sleep", "100")
		must(t, cmd.Start())
		detached := other.Command(t.Context(), "sleep", "100")
		detached.Detach = true
		must(t, detached.Start())
		must(t, other.Close())
		must(t, other.Close())
		if err := cmd.Wait(); CodeOf(err) != "E5004" {
			t.Errorf("a command of a closed handle: %v", err)
		}
		waitFor(t, patience, "the detached command alone is left", func() bool {
			list, err := sb.Processes(t.Context())
			return err == nil && len(list) == 1 && list[0].Pid == detached.Process.Pid
		})
		detached.Wait()
		if err := other.Command(t.Context(), "true").Run(); CodeOf(err) != "E5004" {
			t.Errorf("through a closed handle: %v", err)
		}
		must(t, sb.Close())
		if _, err := c.Connect(t.Context(), sb.ID(), nil); !errors.Is(err, ErrKilled) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("while connecting", func(t *testing.T) {
		p := &hostProvider{}
		c := hostClient(t, p, nil)
		sb := create(t, c, nil)
		p.onConnect = func() { must(t, c.Close()) }
		if got, err := c.Connect(t.Context(), sb.ID(), nil); got != nil || CodeOf(err) != CodeOf(errClientClosed()) {
			t.Errorf("got %v, %v", got, err)
		}
	})
	t.Run("after the context, with a kill that fails once", func(t *testing.T) {
		failures := 1
		p := &hostProvider{onKill: func(string) error {
			if failures--; failures >= 0 {
				return errdefs.New("E5003", "kill", "lost")
			}
			return nil
		}}
		c := hostClient(t, p, nil)
		ctx, cancel := context.WithCancel(t.Context())
		sb, err := c.Create(ctx, nil)
		must(t, err)
		cancel()
		must(t, sb.Close())
		if len(p.boxes) != 0 {
			t.Error("the sandbox lives")
		}
	})
	t.Run("a failure is reported and Close can be repeated", func(t *testing.T) {
		broken := true
		p := &hostProvider{onKill: func(string) error {
			if broken {
				return errdefs.New("E5003", "kill", "lost")
			}
			return nil
		}}
		sb := create(t, hostClient(t, p, nil), nil)
		if err := sb.Close(); CodeOf(err) != "E5003" {
			t.Errorf("got %v", err)
		}
		broken = false
		must(t, sb.Close())
	})
	t.Run("client, detached sandbox", func(t *testing.T) {
		p := &hostProvider{}
		c := hostClient(t, p, nil)
		sb, err := c.Create(t.Context(), &CreateOptions{Detached: true})
		must(t, err)
		cmd := sb.Command(t.Context(), "sleep", "100")
		must(t, cmd.Start())
		sb.detach() // what closing the client does to it
		if err := cmd.Wait(); CodeOf(err) != "E5004" {
			t.Errorf("got %v", err)
		}
		again, err := c.Connect(t.Context(), sb.ID(), nil)
		must(t, err)
		defer again.Close()
		waitFor(t, patience, "the command ended", func() bool {
			list, err := again.Processes(t.Context())
			return err == nil && len(list) == 0
		})
	})
	t.Run("client", func(t *testing.T) {
		p := &hostProvider{}
		c := hostClient(t, p, nil)
		sb := create(t, c, nil)
		cmd := sb.Command(t.Context(), "sleep", "100")
		must(t, cmd.Start())
		must(t, c.Close())
		must(t, c.Close())
		if err := cmd.Wait(); err == nil {
			t.Error("the command succeeded")
		}
		if len(p.boxes) != 0 {
			t.Error("the sandbox lives")
		}
		if _, err := c.Create(t.Context(), nil); err == nil {
			t.Error("created through a closed client")
		}
	})
}

// A creation that is cancelled, or whose sandbox cannot be used, leaves nothing.
func TestCreateLeavesNothing(t *testing.T) {
	t.Run("cancelled", func(t *testing.T) {
		p := &hostProvider{}
		c := hostClient(t, p, nil)
		ctx, cancel := context.WithCancel(t.Context())
		p.edit = func(*providers.CreateRequest, *providers.Sandbox) { cancel() }
		if _, err := c.Create(ctx, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if len(p.boxes) != 0 {
			t.Error("a sandbox lives")
		}
	})
	t.Run("unusable", func(t *testing.T) {
		p := &hostProvider{edit: func(_ *providers.CreateRequest, s *providers.Sandbox) {
			s.Data = providers.Endpoint{URL: "not a url"}
		}}
		c := hostClient(t, p, nil)
		if _, err := c.Create(t.Context(), nil); !errors.Is(err, ErrConnect) {
			t.Errorf("got %v", err)
		}
		if len(p.boxes) != 0 {
			t.Error("a sandbox lives")
		}
	})
}

// What is wrong with options is said before anything is created.
func TestCreateOptions(t *testing.T) {
	p := &hostProvider{}
	c := hostClient(t, p, nil)
	for _, o := range []struct {
		text string
		opts CreateOptions
	}{
		{"negative", CreateOptions{Lifetime: -time.Second}},
		{"minimum 1s", CreateOptions{Lifetime: 1}},
		{"maximum 24h0m0s", CreateOptions{Lifetime: 25 * time.Hour}},
		{"CPU", CreateOptions{CPU: -1}},
		{"Memory", CreateOptions{Memory: -MiB}},
		{"Disk", CreateOptions{Disk: -1}},
		{"Processes", CreateOptions{Processes: -1}},
		{"Env", CreateOptions{Env: map[string]string{"A=B": ""}}},
		{"Env", CreateOptions{Env: map[string]string{"": "x"}}},
		{"Env: A", CreateOptions{Env: map[string]string{"A": "\x00"}}},
		{"reserved", CreateOptions{Env: map[string]string{"SANDBOX_WORKER": "x"}}},
		{"Metadata", CreateOptions{Metadata: map[string]string{"": "x"}}},
		{"Network", CreateOptions{Network: "lopback"}},
		{"Network", CreateOptions{Network: "a.example,,b.example"}},
		{"offers none, loopback, host", CreateOptions{Network: "all"}},
		{"offers none, loopback, host", CreateOptions{Network: "example.com:443"}},
		{"WorkDir", CreateOptions{WorkDir: "relative"}},
		{"User", CreateOptions{User: "a\x00"}},
		{"RequestID", CreateOptions{RequestID: "a b"}},
		{"RequestID", CreateOptions{RequestID: strings.Repeat("a", 65)}},
		{"Require", CreateOptions{Require: []string{""}}},
	} {
		_, err := c.Create(t.Context(), &o.opts)
		if !errors.Is(err, ErrOption) || !strings.Contains(err.Error(), o.text) {
			t.Errorf("%+v: got %v, want %q in it", o.opts, err, o.text)
		}
	}
	if p.creates != 0 {
		t.Errorf("%d sandboxes were created", p.creates)
	}
	var got providers.CreateRequest
	p.edit = func(r *providers.CreateRequest, _ *providers.Sandbox) { got = *r }
	env := map[string]string{"K": "1"}
	sb := create(t, c, &CreateOptions{
		Env: env, Metadata: map[string]string{"m": "v"}, CPU: 1.5, Memory: 100*MiB + 1, Disk: GiB,
		Processes: 10, Network: "loopback", Lifetime: 90 * time.Second,
	})
	env["K"] = "changed"
	if got.RequestID == "" || got.Lifetime != 90*time.Second || got.Env["K"] != "1" || got.Metadata["m"] != "v" ||
		got.Resources != (providers.Resources{CPUMilli: 1500, MemoryMiB: 101, DiskMiB: 1024, Processes: 10}) || got.Network.Mode != "loopback" {
		t.Errorf("got %+v", got)
	}
	for _, c := range []struct {
		env  []string
		want string
	}{{nil, "1"}, {[]string{"K=2"}, "2"}} {
		cmd := sb.Shell(t.Context(), "printf $K")
		cmd.Env = c.env
		if out, err := cmd.Output(); string(out) != c.want || err != nil {
			t.Errorf("K is %q, %v; want %q", out, err, c.want)
		}
	}
}

func TestSetLifetime(t *testing.T) {
	sb := hostSandbox(t)
	end, err := sb.SetLifetime(t.Context(), time.Minute)
	if left := time.Until(end); err != nil || left < 50*time.Second || left > time.Minute {
		t.Errorf("ends in %v, %v", left, err)
	}
	for _, d := range []time.Duration{0, -1, 1, 48 * time.Hour} {
		if _, err := sb.SetLifetime(t.Context(), d); !errors.Is(err, ErrOption) {
			t.Errorf("%v: got %v", d, err)
		}
	}
	if _, err := sb.Report(t.Context()); !errors.Is(err, ErrNotSupported) {
		t.Errorf("report: %v", err)
	}
}

// A list is fetched page by page, as far as it is read.
func TestList(t *testing.T) {
	p := &hostProvider{}
	c := hostClient(t, p, nil)
	for range 5 {
		create(t, c, &CreateOptions{Metadata: map[string]string{"a": "b"}})
	}
	seen := map[string]bool{}
	for info, err := range c.List(t.Context(), &ListOptions{PageSize: 2}) {
		must(t, err)
		if seen[info.ID] || info.State != StateRunning || info.Metadata["a"] != "b" || info.Provider != "host" {
			t.Errorf("got %+v", info)
		}
		seen[info.ID] = true
	}
	if len(seen) != 5 {
		t.Errorf("saw %v", seen)
	}
	for range c.List(t.Context(), nil) {
		break
	}
	for _, err := range c.List(t.Context(), &ListOptions{PageSize: -1}) {
		if !errors.Is(err, ErrOption) {
			t.Errorf("got %v", err)
		}
	}
}

// The whole life of a real sandbox, as another process would see it.
func TestLocalLife(t *testing.T) {
	sb := localSandboxWith(t, &CreateOptions{Metadata: map[string]string{"who": "test"}, Lifetime: time.Minute})
	ctx := t.Context()
	info, err := sb.Info(ctx)
	if err != nil || info.ID != sb.ID() || info.State != StateRunning || info.Provider != "local" || info.Metadata["who"] != "test" {
		t.Errorf("got %+v, %v", info, err)
	}
	if left := time.Until(info.ExpiresAt); left <= 0 || left > time.Minute {
		t.Errorf("ends in %v", left)
	}
	rep, err := sb.Report(ctx)
	if err != nil || rep.Engine == "" {
		t.Errorf("got %+v, %v", rep, err)
	}
	found := 0
	for i, err := range sb.client.List(ctx, &ListOptions{Metadata: map[string]string{"who": "test"}}) {
		must(t, err)
		if i.ID == sb.ID() {
			found++
		}
	}
	if found != 1 {
		t.Errorf("listed %d times", found)
	}
	c2, err := NewClient(&ClientOptions{Provider: "local", StateDir: sb.client.opts.StateDir, CacheDir: sb.client.opts.CacheDir})
	must(t, err)
	defer c2.Close()
	other, err := c2.Connect(ctx, sb.ID(), nil)
	must(t, err)
	if out, err := other.Command(ctx, "echo", "hi").Output(); string(out) != "hi\n" || err != nil {
		t.Errorf("got %q, %v", out, err)
	}
	must(t, other.Close())
	must(t, sb.Command(ctx, "true").Run())
	if _, err := sb.SetLifetime(ctx, 300*time.Millisecond); err != nil {
		if !errors.Is(err, ErrOption) {
			t.Fatal(err)
		}
		if _, err = sb.SetLifetime(ctx, time.Second); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, patience, "expiry", func() bool {
		return errors.Is(sb.Command(ctx, "true").Run(), ErrExpired)
	})
	if _, err := c2.Connect(ctx, sb.ID(), nil); !errors.Is(err, ErrExpired) {
		t.Errorf("connect: %v", err)
	}
	must(t, sb.Close())
}

// The five ways of not being there are five errors, on the real thing.
func TestLocalGone(t *testing.T) {
	c := localClient(t)
	ctx := t.Context()
	killed, err := c.Create(ctx, nil)
	if errors.Is(err, ErrIsolation) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	must(t, err)
	defer killed.Close()
	must(t, c.Kill(ctx, killed.ID()))
	if err := killed.Command(ctx, "true").Run(); !errors.Is(err, ErrKilled) || !strings.Contains(err.Error(), killed.ID()) {
		t.Errorf("killed: %v", err)
	}
	if _, err := c.Connect(ctx, "sandboxthatneverwas", nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("never: %v", err)
	}
}

// 50 sandboxes are usable the moment they are created.
func TestReadyMeansUsable(t *testing.T) {
	sb := localSandbox(t)
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	for i := range rounds {
		one, err := sb.client.Create(t.Context(), nil)
		must(t, err)
		must(t, one.Command(t.Context(), "true").Run())
		must(t, one.FS(t.Context()).WriteFile(fmt.Sprint("f", i), []byte("x"), 0))
		must(t, one.Close())
	}
}
