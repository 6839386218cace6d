//go:build linux

package process

import (
	"os"
	"os/signal"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A stop is looked for stopPause after the last signal about a child, and stopMost
// after the first one at the latest. Most of them tell of an end, which somebody else
// waits for and which must not be slowed down.
const (
	stopPause = 20 * time.Millisecond
	stopMost  = 100 * time.Millisecond
)

// stopGuard kills commands that asked us to trace them and then stopped: nobody
// would let them go on. Where a reaper runs, it does this.
type stopGuard struct {
	table *table
	chld  chan os.Signal
	quit  chan struct{}
	wg    sync.WaitGroup
}

func newStopGuard(t *table) *stopGuard {
	g := &stopGuard{table: t, chld: make(chan os.Signal, 1), quit: make(chan struct{})}
	signal.Notify(g.chld, unix.SIGCHLD)
	g.wg.Go(g.run)
	return g
}

func (g *stopGuard) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var first time.Time // of the signals since the last look
	for {
		select {
		case <-g.chld:
			if first.IsZero() {
				first = time.Now()
			}
			timer.Reset(min(stopPause, stopMost-time.Since(first)))
		case <-timer.C:
			first = time.Time{}
			for _, p := range g.table.living() {
				p.killStopped()
			}
		case <-g.quit:
			return
		}
	}
}

func (g *stopGuard) close() {
	signal.Stop(g.chld)
	close(g.quit)
	g.wg.Wait()
}

// killStopped kills the process if one of its threads is traced by us and has
// stopped. One that has died is collected: the process would not end before that.
func (p *proc) killStopped() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.collected() {
		return
	}
	for _, tid := range threads(p.pid) {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, tid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		switch {
		case err != nil || siginfoPid(&info) != tid:
		case stops(&info):
			_ = unix.Kill(p.pid, unix.SIGKILL) // an error means that it is dead by now
		case tid != p.pid:
			_, _ = unix.Wait4(tid, nil, unix.WNOHANG, nil)
		}
	}
}

// threads lists those of a process, itself first.
func threads(pid int) []int {
	all := []int{pid}
	dir, err := os.Open("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		return all // it has ended
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if tid, err := strconv.Atoi(name); err == nil && tid != pid {
			all = append(all, tid)
		}
	}
	return all
}
