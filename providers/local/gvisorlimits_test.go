//go:build linux

package local

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Each sandbox in gVisor has its limits.
func TestGVisorLimits(t *testing.T) {
	needGVisor(t)
	p := testProvider(t)
	const limit = 40
	sb := gvisorSandbox(t, p, providers.CreateRequest{Resources: providers.Resources{MemoryMiB: 384, DiskMiB: 16, Processes: limit}})
	t.Run("processes", func(t *testing.T) {
		for range 3 { // a limit that holds now and then is none
			out, _ := sh(t, sb, "exec 2>&1; i=0; while [ $i -lt 200 ]; do sleep 100 & i=$((i+1)); done; echo done")
			if !strings.Contains(out, "Cannot fork") && !strings.Contains(out, "Resource temporarily unavailable") || strings.Contains(out, "done") {
				t.Errorf("200 processes: %q", out)
			}
			// The shell has gone, which counted too.
			if n := guestProcesses(t, sb); n != limit-1 {
				t.Errorf("%d of 200 processes live where %d may", n, limit)
			}
			endProcesses(t, sb)
		}
	})
	t.Run("disk", func(t *testing.T) {
		out, end := sh(t, sb, "cd /tmp; dd if=/dev/zero of=big bs=1M count=15 2>&1 && dd if=/dev/zero of=more bs=1M count=8 2>&1; e=$?; rm -f big more; exit $e")
		if end.ExitCode == 0 || !strings.Contains(out, "No space left") {
			t.Errorf("%+v %s", end, out)
		}
	})
	t.Run("memory", func(t *testing.T) {
		if p.groups().mechanism(limitMemory) == "" {
			t.Skip("no control group")
		}
		_, end, err := shell(t.Context(), sb, "x=a; while :; do x=$x$x; done")
		if err == nil && end.ExitCode != 0 {
			return // it ended alone
		}
		eventually(t, "the end is known", func() bool {
			_, err = p.Get(t.Context(), sb.ID)
			return err != nil
		})
		if errdefs.CodeOf(err) != "E2023" || !strings.Contains(err.Error(), "memory") {
			t.Error(err)
		}
	})
}

// A fork bomb in gVisor stays within the limit, and a command that ends it starts
// all the time.
func TestGVisorForkBomb(t *testing.T) {
	needGVisor(t)
	p := testProvider(t)
	for _, bomb := range []struct {
		name, script  string
		limit, rounds int
	}{
		{"fills", "bomb() { sleep 1000 & bomb & bomb & wait; }; bomb", 60, 3},
		// What dies leaves orphans to init, all the time.
		{"churns", "bomb() { bomb | bomb & }; bomb; bomb; bomb; exec sleep 1000", 16, 1},
	} {
		t.Run(bomb.name, func(t *testing.T) {
			limit := bomb.limit
			sb := gvisorSandbox(t, p, providers.CreateRequest{Resources: providers.Resources{Processes: int64(limit)}})
			for range bomb.rounds {
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					_, _, _ = shell(ctx, sb, bomb.script)
				}()
				most := 0
				eventually(t, "the bomb goes off", func() bool {
					most = max(most, guestProcesses(t, sb))
					return most > limit/4 || bomb.name == "churns" && most > 0
				})
				if most = max(most, guestProcesses(t, sb)); most > limit {
					t.Errorf("%d processes live where %d may", most, limit)
				}
				t.Logf("up to %d processes", most)
				endProcesses(t, sb)
				cancel()
				<-ended
			}
		})
	}
}

// guestProcesses counts the processes of commands that live at once, but for the
// one that counts; those that end meanwhile may be missing. It needs no other: the
// shell has all that it takes.
func guestProcesses(t *testing.T, sb *providers.Sandbox) int {
	t.Helper()
	out, _ := sh(t, sb, "n=0; for f in /proc/[0-9]*/stat; do s=Z; read pid name s rest <$f; [ $s = Z ] || n=$((n+1)); done 2>/dev/null; echo $n")
	n, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		t.Fatal(errors.Join(err, errors.New(out)))
	}
	return n - 2 // init and the shell
}

// endProcesses ends all processes of commands, also where there is no room for
// another one: a command starts nevertheless.
func endProcesses(t *testing.T, sb *providers.Sandbox) {
	t.Helper()
	eventually(t, "processes end", func() bool {
		// Until there is none: in gVisor a signal to all misses what is born meanwhile.
		if _, _, err := shell(t.Context(), sb, "while kill -KILL -1; do :; done"); err != nil {
			t.Fatalf("a command does not start: %v", err)
		}
		return guestProcesses(t, sb) == 0
	})
}
