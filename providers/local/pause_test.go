//go:build linux

package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// useFreezer makes p stop sandboxes in one way; the test is skipped where it is
// not to be had.
func useFreezer(t *testing.T, p *Provider, way string) {
	t.Helper()
	h := findCgroups("", "/")
	delete(h.at, limitFreezer)
	h.why[limitFreezer] = "the test wants another way"
	mounts, err := readCgroupMounts()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		switch {
		case way == byCgroup2 && m.version == 2:
			h.findFreezer2(m.own)
		case way == byCgroup1 && m.version == 1 && slices.Contains(m.controllers, limitFreezer):
			h.findFreezer1(m, m.own)
		}
	}
	if got := h.mechanism(limitFreezer); way != bySignals && got != way {
		t.Skip("no freezer of this kind: ", h.why[limitFreezer])
	}
	p.groups = func() *cgroupHost { return h }
	t.Cleanup(h.tidy)
}

// eachFreezer runs the test in every way that this machine has.
func eachFreezer(t *testing.T, f func(t *testing.T, p *Provider)) {
	for _, way := range []string{byCgroup2, byCgroup1, bySignals} {
		t.Run(way, func(t *testing.T) {
			p := testProvider(t)
			useFreezer(t, p, way)
			f(t, p)
		})
	}
}

func pauseSandbox(t *testing.T, p *Provider, id string) {
	t.Helper()
	if err := p.Pause(t.Context(), id); err != nil {
		t.Fatal("pause:", err)
	}
}

func resumeSandbox(t *testing.T, p *Provider, id string) *providers.Sandbox {
	t.Helper()
	sb, err := p.Resume(t.Context(), id, providers.ConnectRequest{})
	if err != nil {
		t.Fatal("resume:", err)
	}
	if sb.State != providers.StateRunning || sb.Data.Dial == nil {
		t.Errorf("resumed: %+v", sb)
	}
	return sb
}

// hostPids are the processes of a sandbox but init, seen from outside.
func hostPids(t *testing.T, p *Provider, id string) []int {
	t.Helper()
	e, err := p.tree.openEntry(id)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	var state savedState
	if err := e.load(fileState, &state); err != nil {
		t.Fatal(err)
	}
	var all []int
	for next := []int{state.PID}; len(next) > 0; {
		kids := childrenOf(next[0])
		next = append(next[1:], kids...)
		all = append(all, kids...)
	}
	return all
}

// switches counts how often the threads of processes were on a processor.
func switches(pids []int) int64 {
	var sum int64
	for _, pid := range pids {
		dir := "/proc/" + strconv.Itoa(pid) + "/task/"
		names, _ := readNames(dir)
		for _, n := range names {
			b, _ := os.ReadFile(dir + n + "/status")
			if v := fieldOf(b, "voluntary_ctxt_switches:"); v < 1<<40 {
				sum += v + fieldOf(b, "nonvoluntary_ctxt_switches:")
			}
		}
	}
	return sum
}

// checkStopped looks whether anything of a paused sandbox is on a processor. A
// process that was past its last instruction may still leave, and the way off the
// processor counts too: where that is busy it takes a while, but each goes it once.
func checkStopped(t *testing.T, p *Provider, id string) {
	t.Helper()
	look := func() map[int]int64 {
		all := map[int]int64{}
		for _, pid := range hostPids(t, p, id) {
			all[pid] = switches([]int{pid})
		}
		return all
	}
	const most = 3 // switches of one that leaves the processor
	first := look()
	eventually(t, "nothing runs for 50 ms", func() bool {
		before := look()
		time.Sleep(50 * time.Millisecond)
		still := true
		for pid, n := range look() {
			b, ok := first[pid]
			if !ok || n > b+most {
				t.Fatalf("process %d ran on: %d switches, at first %d (%v)", pid, n, b, ok)
			}
			still = still && before[pid] == n
		}
		return still
	})
}

// background starts a script that outlives the call.
func background(t *testing.T, sb *providers.Sandbox, script string) {
	t.Helper()
	if _, end := sh(t, sb, "("+script+") >/dev/null 2>&1 </dev/null & exit 0"); end.ExitCode != 0 {
		t.Fatalf("start %s: %+v", script, end)
	}
}

// eventually waits for something that takes a moment.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatal("never: ", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestPause(t *testing.T) {
	eachFreezer(t, func(t *testing.T, p *Provider) {
		sb := create(t, p, providers.CreateRequest{Lifetime: time.Minute})
		background(t, sb, "while :; do date +%s%N >/tmp/now; sleep 0.01; done")
		background(t, sb, "while :; do :; done")
		pids := hostPids(t, p, sb.ID)
		if len(pids) < 2 {
			t.Fatalf("processes: %v", pids)
		}
		pauseSandbox(t, p, sb.ID)

		checkStopped(t, p, sb.ID)
		before := switches(pids)

		got, err := p.Get(t.Context(), sb.ID)
		if err != nil || got.State != providers.StatePaused || got.Data.Dial != nil || got.ExpiresAt.IsZero() {
			t.Errorf("paused: %+v, %v", got, err)
		}
		page, err := p.List(t.Context(), providers.ListRequest{States: []providers.State{providers.StatePaused}})
		if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].State != providers.StatePaused {
			t.Errorf("list of paused: %+v, %v", page, err)
		}
		if err := p.Pause(t.Context(), sb.ID); !errors.Is(err, errdefs.ErrPaused) {
			t.Errorf("pause twice: %v", err)
		}
		if _, _, err := shell(t.Context(), sb, "true"); !errors.Is(err, errdefs.ErrPaused) {
			t.Errorf("command during the pause: %v", err)
		}
		if _, err := p.Usage(t.Context(), sb.ID); err != nil {
			t.Errorf("measure a paused one: %v", err)
		}

		resumeSandbox(t, p, sb.ID)
		if again := resumeSandbox(t, p, sb.ID); again.State != providers.StateRunning {
			t.Errorf("resumed twice: %+v", again)
		}
		if now := hostPids(t, p, sb.ID); !slices.Contains(now, pids[0]) {
			t.Errorf("processes before %v and after %v", pids, now)
		}
		eventually(t, "processes go on", func() bool { return switches(pids) > before })
		// The clock inside is the one of the machine (LIFE-10).
		out, _ := sh(t, sb, "date +%s%N")
		inside, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
		if err != nil || time.Since(time.Unix(0, inside)).Abs() > 20*time.Second {
			t.Errorf("clock inside: %q, %v", out, err)
		}
		if rep, err := p.Report(t.Context(), sb.ID); err != nil || rep.Freezer == "none" || rep.Freezer == "" {
			t.Errorf("report: %+v, %v", rep, err)
		}
		if err := p.Kill(t.Context(), sb.ID); err != nil {
			t.Error(err)
		}
	})
}

// Without control groups the report says so, and Require refuses.
func TestPauseDegrades(t *testing.T) {
	p := testProvider(t)
	useFreezer(t, p, bySignals)
	if _, err := p.Create(t.Context(), providers.CreateRequest{Require: []string{"freezer"}}); !errors.Is(err, errdefs.ErrRequire) {
		t.Errorf("required: %v", err)
	}
	sb := create(t, p, providers.CreateRequest{})
	rep, err := p.Report(t.Context(), sb.ID)
	if err != nil || rep.Freezer != bySignals || !slices.ContainsFunc(rep.Degraded, func(d providers.Degradation) bool { return d.What == "freezer" }) {
		t.Errorf("report: %+v, %v", rep, err)
	}
}

// A process that was stopped by somebody else is not continued.
func TestPauseKeepsStopped(t *testing.T) {
	eachFreezer(t, func(t *testing.T, p *Provider) {
		sb := create(t, p, providers.CreateRequest{})
		out, _ := sh(t, sb, "sleep 1000 >/dev/null 2>&1 & kill -STOP $!; echo $!")
		pid := strings.TrimSpace(out)
		state := func() string {
			out, _ := sh(t, sb, "sed 's/.*) //; s/ .*//' /proc/"+pid+"/stat")
			return strings.TrimSpace(out)
		}
		eventually(t, "the process is stopped", func() bool { return state() == "T" })
		pauseSandbox(t, p, sb.ID)
		resumeSandbox(t, p, sb.ID)
		if got := state(); got != "T" {
			t.Errorf("state after the pause: %q", got)
		}
	})
}

// Whatever forks as fast as it can stops as a whole, and goes on.
func TestPauseForkBomb(t *testing.T) {
	eachFreezer(t, func(t *testing.T, p *Provider) {
		sb := create(t, p, providers.CreateRequest{Resources: providers.Resources{Processes: 60}})
		background(t, sb, "for i in 1 2 3 4 5 6; do (while :; do (exec true) & (:); done) & done; wait")
		background(t, sb, "while :; do sh -c 'sh -c \"exec true\" & exec true'; done")
		for range scaled(3, 10, 50) {
			pauseSandbox(t, p, sb.ID)
			checkStopped(t, p, sb.ID)
			resumeSandbox(t, p, sb.ID)
		}
		if err := p.Kill(t.Context(), sb.ID); err != nil {
			t.Error(err)
		}
	})
}

// A command with output that runs when the pause comes loses nothing.
func TestPauseDuringCommand(t *testing.T) {
	eachFreezer(t, func(t *testing.T, p *Provider) {
		sb := create(t, p, providers.CreateRequest{})
		type result struct {
			out string
			end *envd.End
			err error
		}
		done := make(chan result, 1)
		go func() {
			out, end, err := shell(t.Context(), sb, "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo $i; sleep 0.002; done; exit 7")
			done <- result{out, end, err}
		}()
		eventually(t, "the command runs", func() bool { return len(hostPids(t, p, sb.ID)) > 0 })
		var r result
	loop:
		for {
			select {
			case r = <-done:
				break loop
			default:
			}
			err := p.Pause(t.Context(), sb.ID)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond)
			resumeSandbox(t, p, sb.ID)
			time.Sleep(20 * time.Millisecond)
		}
		var want strings.Builder
		for i := range 300 {
			fmt.Fprintln(&want, i+1)
		}
		if r.err != nil || r.end.ExitCode != 7 || r.out != want.String() {
			t.Errorf("%v, %+v, %d bytes of %d", r.err, r.end, len(r.out), want.Len())
		}
	})
}

// The end of the lifetime ends a paused sandbox, whichever way it is stopped.
func TestPausedExpires(t *testing.T) {
	eachFreezer(t, func(t *testing.T, p *Provider) {
		sb := create(t, p, providers.CreateRequest{})
		background(t, sb, "sleep 1000")
		pauseSandbox(t, p, sb.ID)
		pids := hostPids(t, p, sb.ID)
		if _, err := p.SetLifetime(t.Context(), sb.ID, minLifetime); err != nil {
			t.Fatal(err)
		}
		checkEnded(t, pids) // before anybody looks, and perhaps helps
		eventually(t, "the sandbox is gone", func() bool {
			_, err := p.Get(t.Context(), sb.ID)
			return errors.Is(err, errdefs.ErrExpired)
		})
	})
}

func checkEnded(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		eventually(t, "process "+strconv.Itoa(pid)+" has ended", func() bool {
			b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
			return err != nil || strings.Contains(string(b), ") Z ")
		})
	}
}

// Connect resumes, and moves the end.
func TestConnectResumes(t *testing.T) {
	p := testProvider(t)
	sb := create(t, p, providers.CreateRequest{Lifetime: time.Minute})
	pauseSandbox(t, p, sb.ID)
	got, err := p.Connect(t.Context(), sb.ID, providers.ConnectRequest{Lifetime: time.Hour})
	if err != nil || got.State != providers.StateRunning || time.Until(got.ExpiresAt) < 50*time.Minute {
		t.Fatalf("%+v, %v", got, err)
	}
	if out, _ := sh(t, got, "echo ok"); out != "ok\n" {
		t.Errorf("got %q", out)
	}
	pauseSandbox(t, p, sb.ID)
	if got, err := p.Connect(t.Context(), sb.ID, providers.ConnectRequest{Lifetime: time.Minute}); err != nil || time.Until(got.ExpiresAt) < 50*time.Minute {
		t.Errorf("shortened: %+v, %v", got, err)
	}
}

// A paused sandbox can be killed by its creator, by another process that knows
// it, with its init, and by the end of an attached client.
func TestPausedEnds(t *testing.T) {
	ways := map[string]func(t *testing.T, p *Provider, id string){
		"kill": func(t *testing.T, p *Provider, id string) {
			if err := p.Kill(t.Context(), id); err != nil {
				t.Error(err)
			}
		},
		"kill by another": func(t *testing.T, p *Provider, id string) {
			other := openProvider(t, p.root)
			if err := other.Kill(t.Context(), id); err != nil {
				t.Error(err)
			}
		},
		"init killed": func(t *testing.T, p *Provider, id string) {
			p.mu.Lock()
			c := p.live[id]
			p.mu.Unlock()
			c.proc.process.Kill()
		},
		"client lets go": func(t *testing.T, p *Provider, id string) {
			p.mu.Lock()
			c := p.live[id]
			p.mu.Unlock()
			c.lifeline.Close()
		},
		"provider closed": func(t *testing.T, p *Provider, id string) {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		},
	}
	for name, end := range ways {
		t.Run(name, func(t *testing.T) {
			eachFreezer(t, func(t *testing.T, p *Provider) {
				sb := create(t, p, providers.CreateRequest{})
				background(t, sb, "trap '' HUP TERM; while :; do :; done")
				background(t, sb, "sleep 1000")
				pauseSandbox(t, p, sb.ID)
				pids := hostPids(t, p, sb.ID)
				end(t, p, sb.ID)
				if name != "provider closed" {
					eventually(t, "the sandbox is gone", func() bool {
						_, err := p.Get(t.Context(), sb.ID)
						return errors.Is(err, errdefs.ErrKilled) || errors.Is(err, errdefs.ErrCrashed)
					})
				}
				checkEnded(t, pids)
			})
		})
	}
}

// The state is kept by init: another client sees it and resumes, and a client
// that is killed at any time leaves no sandbox half paused.
func TestPausedOutlivesClient(t *testing.T) {
	root := testRoot(t)
	t.Cleanup(func() { checkNothingLeft(t, root) })
	cmd, id, end := startClient(t, envState+"="+root, envDetached+"=1")
	defer end()
	p := openProvider(t, root)
	pauseSandbox(t, p, id)
	cmd.Process.Kill()
	end()
	other := openProvider(t, root)
	if sb, err := other.Get(t.Context(), id); err != nil || sb.State != providers.StatePaused {
		t.Fatalf("%+v, %v", sb, err)
	}
	sb := resumeSandbox(t, other, id)
	if out, _ := sh(t, sb, "echo ok"); out != "ok\n" {
		t.Errorf("got %q", out)
	}
	if err := other.Kill(t.Context(), id); err != nil {
		t.Error(err)
	}
}

// An attached sandbox ends with its client also when it is paused.
func TestPausedEndsWithClient(t *testing.T) {
	root := testRoot(t)
	t.Cleanup(func() { checkNothingLeft(t, root) })
	cmd, id, end := startClient(t, envState+"="+root)
	defer end()
	p := openProvider(t, root)
	pauseSandbox(t, p, id)
	pids := hostPids(t, p, id)
	cmd.Process.Kill()
	end()
	checkEnded(t, pids)
	eventually(t, "the sandbox is gone", func() bool {
		_, err := p.Get(t.Context(), id)
		return errors.Is(err, errdefs.ErrKilled)
	})
}

// Of many that pause at once one does and the others are told that it is.
func TestPauseAtOnce(t *testing.T) {
	eachFreezer(t, func(t *testing.T, p *Provider) {
		sb := create(t, p, providers.CreateRequest{})
		background(t, sb, "while :; do sleep 0.001; done")
		other := openProvider(t, p.root)
		var mu sync.Mutex
		won := 0
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				err := []*Provider{p, other}[i%2].Pause(t.Context(), sb.ID)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					won++
				case !errors.Is(err, errdefs.ErrPaused):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won != 1 {
			t.Errorf("%d pauses were granted", won)
		}
		// Pauses and resumptions at once end in one state or the other.
		for range 8 {
			wg.Go(func() {
				if err := p.Pause(t.Context(), sb.ID); err != nil && !errors.Is(err, errdefs.ErrPaused) {
					t.Error(err)
				}
			})
			wg.Go(func() {
				if _, err := other.request(t.Context(), "resume", sb.ID, controlRequest{Op: opResume}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if out, _ := sh(t, resumeSandbox(t, p, sb.ID), "echo ok"); out != "ok\n" {
			t.Errorf("got %q", out)
		}
	})
}

// Starts that come while the sandbox is being paused either run before or are
// refused or wait; none runs in between.
func TestPauseAgainstStarts(t *testing.T) {
	eachFreezer(t, func(t *testing.T, p *Provider) {
		sb := create(t, p, providers.CreateRequest{})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for ctx.Err() == nil {
					_, _, err := shell(t.Context(), sb, "echo x >>/tmp/runs")
					if err != nil && !errors.Is(err, errdefs.ErrPaused) {
						t.Error(err)
						return
					}
				}
			})
		}
		for range scaled(5, 20, 200) {
			pauseSandbox(t, p, sb.ID)
			checkStopped(t, p, sb.ID)
			resumeSandbox(t, p, sb.ID)
		}
		cancel()
		wg.Wait()
	})
}

// Rounds in several sandboxes at once leave nothing behind.
func TestPauseRounds(t *testing.T) {
	eachFreezer(t, func(t *testing.T, p *Provider) {
		round := func() {
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					sb, err := p.Create(t.Context(), providers.CreateRequest{})
					if err != nil {
						t.Error(err)
						return
					}
					if _, _, err := shell(t.Context(), sb, "sleep 1000 >/dev/null 2>&1 & exit 0"); err != nil {
						t.Error(err)
					}
					for range scaled(5, 20, 20) {
						if err := p.Pause(t.Context(), sb.ID); err != nil {
							t.Error(err)
						}
						if _, err := p.Resume(t.Context(), sb.ID, providers.ConnectRequest{}); err != nil {
							t.Error(err)
						}
					}
					if err := p.Kill(t.Context(), sb.ID); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		}
		round()
		before := count(t)
		round()
		checkReturned(t, before)
		checkNothingLeft(t, p.root)
	})
}

// The lock of a living init keeps the group that it may need from collectors of
// other state directories.
func TestFreezerGroupStays(t *testing.T) {
	p := testProvider(t)
	useFreezer(t, p, byCgroup2)
	sb := create(t, p, providers.CreateRequest{})
	h := p.groups()
	dir := filepath.Join(h.at[limitFreezer].parent, cgroupFolder, sb.ID)
	old := time.Now().Add(-2 * strayAge)
	if err := os.Chtimes(dir, old, old); err != nil {
		t.Skip("times of groups cannot be set: ", err)
	}
	h.collectStrays()
	if _, err := os.Stat(dir); err != nil {
		t.Fatal("the group was collected: ", err)
	}
	pauseSandbox(t, p, sb.ID)
	resumeSandbox(t, p, sb.ID)
	if err := p.Kill(t.Context(), sb.ID); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the group is left")
	}
}
