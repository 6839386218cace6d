package sandboxfn

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestPause(t *testing.T) {
	sb := localSandbox(t)
	web, _ := serverInside(t, sb)
	url, err := sb.URL(web)
	must(t, err)
	cmd := sb.Command(t.Context(), "sh", "-c", "echo before; while ! [ -e /tmp/go ]; do sleep 0.01; done; echo after")
	var out strings.Builder
	cmd.Stdout = &out
	must(t, cmd.Start())

	must(t, sb.Pause(t.Context()))
	if err := sb.Pause(t.Context()); !errors.Is(err, ErrPaused) {
		t.Errorf("twice: %v", err)
	}
	if err := sb.client.Pause(t.Context(), sb.ID()); !errors.Is(err, ErrPaused) {
		t.Errorf("by id: %v", err)
	}
	f := sb.FS(t.Context())
	_, readErr := f.ReadFile("/etc/passwd")
	_, listErr := f.ReadDir("/")
	_, procErr := sb.Processes(t.Context())
	_, dialErr := sb.Dial(t.Context(), "tcp", local(web))
	for what, err := range map[string]error{
		"command": sb.Command(t.Context(), "true").Run(), "read": readErr, "write": f.WriteFile("/tmp/x", nil, 0o600),
		"list": listErr, "mkdir": f.MkdirAll("/tmp/d", 0o700), "processes": procErr, "dial": dialErr,
	} {
		if !errors.Is(err, ErrPaused) || errors.Is(err, ErrNetwork) {
			t.Errorf("%s: %v", what, err)
		}
	}
	info, err := sb.Info(t.Context())
	if err != nil || info.State != StatePaused || info.RuntimeVersion == "" {
		t.Errorf("%+v, %v", info, err)
	}
	found := false
	for i, err := range sb.client.List(t.Context(), nil) {
		must(t, err)
		found = found || i.ID == sb.ID() && i.State == StatePaused
	}
	if !found {
		t.Error("not listed")
	}
	if m, err := sb.Metrics(t.Context()); err != nil || m.MemoryUsed == 0 {
		t.Errorf("metrics of a paused one: %+v, %v", m, err)
	}

	must(t, sb.Resume(t.Context()))
	must(t, sb.Resume(t.Context()))
	must(t, f.WriteFile("/tmp/go", nil, 0o600))
	must(t, cmd.Wait())
	if out.String() != "before\nafter\n" {
		t.Errorf("output %q", out.String())
	}
	if again, err := sb.URL(web); again != url || err != nil {
		t.Errorf("url %q, then %q, %v", url, again, err)
	}
	c, err := sb.Dial(t.Context(), "tcp", local(web))
	must(t, err)
	must(t, c.Close())

	must(t, sb.Pause(t.Context()))
	other, err := sb.client.Connect(t.Context(), sb.ID(), nil)
	must(t, err)
	defer other.Close()
	must(t, other.Command(t.Context(), "true").Run())
	must(t, sb.Pause(t.Context()))
	must(t, sb.Close()) // of a paused one
	if err := sb.Pause(t.Context()); !errors.Is(err, ErrKilled) {
		t.Errorf("after the end: %v", err)
	}
	if err := other.Pause(t.Context()); !errors.Is(err, ErrKilled) {
		t.Errorf("by another handle: %v", err)
	}
}

// Many sandboxes are paused and resumed at once, with commands in between.
func TestPauseRounds(t *testing.T) {
	c := localClient(t)
	localSandbox(t) // skips where there are none
	var wg sync.WaitGroup
	for range 3 {
		sb := create(t, c, nil)
		wg.Go(func() {
			for range 20 {
				if err := sb.Pause(t.Context()); err != nil {
					t.Error(err)
				}
				if err := sb.Resume(t.Context()); err != nil {
					t.Error(err)
				}
				if out, err := sb.Command(t.Context(), "echo", "ok").Output(); string(out) != "ok\n" || err != nil {
					t.Errorf("%q, %v", out, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestMetrics(t *testing.T) {
	sb := localSandboxWith(t, &CreateOptions{Memory: 256 * MiB})
	busy := sb.Command(t.Context(), "sh", "-c", "head -c 20000000 /dev/zero >/tmp/zeros; while :; do :; done")
	must(t, busy.Start())
	defer func() { busy.Process.Kill(); busy.Wait() }()
	start := time.Now()
	for deadline := start.Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		m, err := sb.Metrics(t.Context())
		must(t, err)
		if m.CPUPercent > 5 && m.MemoryUsed > 20_000_000 && m.DiskUsed >= 20_000_000 {
			if m.CPUs <= 0 || m.MemoryTotal != 256*MiB || m.DiskTotal < m.DiskUsed || m.At.Before(start) || m.CPUPercent > 1000 {
				t.Errorf("%+v", m)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", m)
		}
	}
}

// BenchmarkPause compares a pause and resumption with a command.
func BenchmarkPause(b *testing.B) {
	sb := localSandbox(b)
	cmd := sb.Command(b.Context(), "sh", "-c", "sleep 1000 & sleep 1000 & wait")
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	b.Run("pause_resume", func(b *testing.B) {
		for b.Loop() {
			if err := sb.Pause(b.Context()); err != nil {
				b.Fatal(err)
			}
			if err := sb.Resume(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("command", func(b *testing.B) {
		for b.Loop() {
			if err := sb.Command(b.Context(), "true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
