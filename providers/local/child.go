//go:build linux

package local

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// child is a sandbox that this provider made: init is a child process of ours,
// so somebody has to wait for it, and removes what it left at the same time.
type child struct {
	id       string
	detached bool
	proc     *initProc
	pidfd    *os.File
	lifeline *os.File // closing it ends an attached sandbox
	egress   *egress  // nil: its network needs nobody outside
	groups   []string // as in config.json, which somebody may remove

	once sync.Once
	done chan struct{} // closed when nothing is left, or we let go
	err  error         // of the removal; valid after done
}

// adopt takes over a sandbox that is complete and, when it is detached, lets
// it live without us.
func (p *Provider) adopt(ctx context.Context, b *builder) error {
	pidfd, err := openPidfd(b.proc.pid)
	if err != nil {
		return err
	}
	c := &child{id: b.o.id, detached: b.o.Detached, proc: b.proc, pidfd: pidfd, lifeline: b.lifeline,
		groups: ownCgroups(b.o.id, b.saved.Cgroups), done: make(chan struct{})}
	if c.egress, err = p.startEgress(ctx, b); err != nil {
		pidfd.Close()
		return err
	}
	if c.detached {
		if _, err := c.lifeline.Write([]byte{detachByte}); err != nil {
			c.egress.close()
			pidfd.Close()
			return &errdefs.Error{Code: "E2009", Op: "create sandbox", Message: "sandbox ended while it was made", Err: err}
		}
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		c.egress.close()
		pidfd.Close()
		return &errdefs.Error{Code: "E8000", Op: "create sandbox", Message: "the provider was closed"}
	}
	p.live[c.id] = c
	p.wg.Add(1)
	p.mu.Unlock()
	go p.watch(b.t, c)
	return nil
}

// watch waits for the end of init, by whatever cause, and removes the remains.
func (p *Provider) watch(t *tree, c *child) {
	defer p.wg.Done()
	defer close(c.done)
	err := waitPidfd(c.pidfd)
	p.mu.Lock()
	delete(p.live, c.id)
	p.mu.Unlock()
	c.lifeline.Close()
	c.egress.close()
	defer c.pidfd.Close()
	if err != nil { // letGo
		keepStray(c.proc.process)
		return
	}
	_, _ = c.proc.process.Wait()
	if err := t.collectEnded(c.id); err != nil && !errors.Is(err, errBusy) && !errors.Is(err, errAsleep) {
		c.err = err
		p.log.Warn("remains of a sandbox not removed", "sandbox_id", c.id, "err", err)
	}
	if t.removed() { // nobody else knows of them
		c.err = errors.Join(c.err, removeCgroups(c.groups))
	}
}

// letGo ends an attached sandbox and stops watching a detached one.
func (c *child) letGo(t *tree) {
	c.once.Do(func() {
		if c.detached {
			_ = c.pidfd.SetReadDeadline(time.Unix(1, 0))
			return
		}
		e, err := t.openEntry(c.id)
		if err == nil {
			defer e.close()
			_ = e.noteEnd(endClient)
		}
		_ = c.proc.process.Kill() // an error means that it has ended
		if err != nil {
			e = nil
		}
		c.thaw(t, e)
	})
}

// thaw is tree.thaw, also when nothing is left of the directory.
func (c *child) thaw(t *tree, e *entry) {
	if e == nil {
		thawGroups(c.groups)
		return
	}
	t.thaw(e)
}

// alive reports whether init has not ended yet.
func (c *child) alive() bool {
	conn, err := c.pidfd.SyscallConn()
	if err != nil {
		return false
	}
	alive := false
	err = conn.Control(func(fd uintptr) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		alive = n == 0 && err == nil
	})
	return alive && err == nil
}

// strays are detached children of providers that were closed. They live on,
// but when they end while this process lives they have to be waited for.
var strays struct {
	sync.Mutex
	list []*os.Process
}

func keepStray(p *os.Process) {
	strays.Lock()
	defer strays.Unlock()
	strays.list = append(strays.list, p)
}

// reapStrays waits for those that have ended; it does not block.
func reapStrays() {
	strays.Lock()
	defer strays.Unlock()
	keep := strays.list[:0]
	for _, p := range strays.list {
		pid, err := unix.Wait4(p.Pid, nil, unix.WNOHANG, nil)
		if pid == 0 && err == nil {
			keep = append(keep, p)
			continue
		}
		_ = p.Release()
	}
	clear(strays.list[len(keep):])
	strays.list = keep
}
