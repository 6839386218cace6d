//go:build linux

package local

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
)

// A command that uses more memory than there is dies alone and says so; the
// runtime goes on.
func TestMemoryLimit(t *testing.T) {
	p := testProvider(t)
	sb := create(t, p, providers.CreateRequest{Resources: providers.Resources{MemoryMiB: 128}})
	neighbour := create(t, p, providers.CreateRequest{})
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, end, err := shell(ctx, sb, "exec tail /dev/zero")
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if end.Exited || !end.MemoryLimit {
			t.Errorf("end: %+v", end)
		}
		for _, s := range []*providers.Sandbox{sb, neighbour} {
			if out, end := sh(t, s, "echo alive"); out != "alive\n" || end.MemoryLimit {
				t.Errorf("afterwards: %q %+v", out, end)
			}
		}
	}
	// Its parent learns it from the status, as for any signal.
	out, end := sh(t, sb, "tail /dev/zero; echo $?")
	if !strings.Contains(out, "137\n") || end.MemoryLimit {
		t.Errorf("child at the limit: %q %+v", out, end)
	}
}

// Files are memory, and have a limit of their own that comes first.
func TestScratchLimit(t *testing.T) {
	p := testProvider(t)
	sb := create(t, p, providers.CreateRequest{Resources: providers.Resources{MemoryMiB: 128, DiskMiB: 16}})
	out, end := sh(t, sb, "head -c 17M /dev/zero > /tmp/big; echo $?; wc -c < /tmp/big; rm /tmp/big; echo ok > ~/small && cat ~/small")
	if !strings.Contains(out, "No space left") && !strings.Contains(out, "File too large") || !strings.HasSuffix(out, "ok\n") || end.MemoryLimit {
		t.Errorf("%q %+v", out, end)
	}
	out, _ = sh(t, sb, "i=0; while true > /tmp/f$i; do i=$((i+1)); done 2>/dev/null; echo $i; rm -f /tmp/f*; ls /tmp | wc -l")
	n, _ := strconv.Atoi(strings.SplitN(out, "\n", 2)[0])
	if n == 0 || n > 20_000 || !strings.HasSuffix(out, "\n0\n") {
		t.Errorf("files: %q", out)
	}
}

// A fork bomb stays within its sandbox: the runtime answers, the neighbour is
// not held up, and killing it takes no longer than usual.
func TestForkBomb(t *testing.T) {
	p := testProvider(t)
	sb := create(t, p, providers.CreateRequest{Resources: providers.Resources{Processes: 100, MemoryMiB: 256}})
	neighbour := create(t, p, providers.CreateRequest{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _, _ = shell(ctx, sb, "bomb() { bomb | bomb & }; bomb; sleep 1000")
	}()
	time.Sleep(time.Second)
	if out, _ := sh(t, neighbour, "cat /proc/[0-9]*/comm | wc -l"); out == "" {
		t.Error("the neighbour does not answer")
	}
	got, err := p.Get(t.Context(), sb.ID)
	if err != nil || got.State != providers.StateRunning {
		t.Errorf("get: %+v, %v", got, err)
	}
	p.mu.Lock()
	pid := p.live[sb.ID].proc.pid
	p.mu.Unlock()
	if n := len(descendants(pid)); n > 130 {
		t.Errorf("%d processes", n)
	} else {
		t.Logf("%d processes", n)
	}
	start := time.Now()
	if err := p.Kill(t.Context(), sb.ID); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("kill took %v", took)
	}
	cancel()
	<-done
}

func descendants(pid int) []int {
	all := childrenOf(pid)
	for i := 0; i < len(all); i++ {
		all = append(all, childrenOf(all[i])...)
	}
	return all
}

// Busy commands get the processor time that they were given.
func TestProcessorLimit(t *testing.T) {
	p := testProvider(t)
	if p.groups().mechanism(limitCPU) == "" {
		t.Skip("no control group: ", p.groups().why[limitCPU])
	}
	const milli = 300
	sb := create(t, p, providers.CreateRequest{Resources: providers.Resources{CPUMilli: milli}})
	start := time.Now()
	out, _ := sh(t, sb, `for i in 1 2 3; do timeout 2 sh -c 'while :; do :; done' & done; wait; cat /proc/stat >/dev/null; times`)
	var used time.Duration
	for _, f := range strings.Fields(out) {
		f = strings.ReplaceAll(f, "m", "m")
		if d, err := time.ParseDuration(f); err == nil {
			used += d
		}
	}
	most := time.Duration(float64(time.Since(start)) * milli / 1000 * 1.25) // what starts under the limit is late itself
	if used == 0 || used > most+150*time.Millisecond {
		t.Errorf("used %v, limit %v (%s)", used, most, fmt.Sprintf("%q", out))
	}
}

func TestChooseLimits(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		machine int64
		r       providers.Resources
		want    limits
	}{
		{32 * gib, providers.Resources{}, limits{2 * gib, gib / 2, 512, 0, 0, 0}},
		{2 * gib, providers.Resources{}, limits{gib, gib / 2, 512, 0, 0, 0}},
		{100 << 20, providers.Resources{}, limits{64 << 20, 32 << 20, 512, 0, 0, 0}},
		{32 * gib, providers.Resources{MemoryMiB: 100, Processes: 10, CPUMilli: 500}, limits{100 << 20, 50 << 20, 10, 500, 0, 0}},
		{32 * gib, providers.Resources{MemoryMiB: 4096, DiskMiB: 2048}, limits{4 * gib, 2 * gib, 512, 0, 0, 0}},
	} {
		got, err := chooseLimits(c.r, c.machine)
		if err != nil || got != c.want {
			t.Errorf("%+v of %d: %+v, %v; want %+v", c.r, c.machine, got, err, c.want)
		}
	}
}
