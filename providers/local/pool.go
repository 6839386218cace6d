//go:build linux

package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
)

// settingPool is how many sandboxes a provider keeps built and waiting for a
// creation like the last one; 0: none. It is a decimal number.
const settingPool = "pool"

const (
	defaultPool = 1
	maxPool     = 64

	// poolIdle is how long a built sandbox waits. What it shows of the machine
	// is therefore never older; what can be seen to have changed is dropped
	// before.
	poolIdle = time.Minute
)

// pool keeps sandboxes that are built and wait for their purpose, so that a
// creation like the last one only has to name it. They have no name that
// anybody could know and are in no list. Each is given out once, to a creation
// of which everything that shapes the construction is the same.
//
// One goroutine, the keeper, builds and removes them. It lives while there is
// something to do and ends with the provider, which waits for it. A process
// that dies takes its pool along: a waiting init ends when its client is gone.
type pool struct {
	p    *Provider
	size int
	idle time.Duration

	mu      sync.Mutex
	busy    int             // creations that run
	wish    *order          // what to build, without a purpose; nil: nothing
	tree    *tree           // set with wish
	ready   []*spare        // oldest first
	filling *fill           // nil: nothing is being built
	kick    chan struct{}   // wakes the keeper; nil: there is none
	ended   bool            // the provider is closed
	cancel  func()          // of the keeper
	drained []chan struct{} // to close when what was ready is gone
}

// A spare is a sandbox that waits.
type spare struct {
	b     *builder
	until time.Time
	view  *hostView
	conn  net.Conn // to its runtime, which does not accept it before it has its purpose
}

// A fill is a construction for the pool.
type fill struct {
	order   *order
	claimed bool          // a creation waits for it
	done    chan struct{} // closed when spare is set
	spare   *spare        // nil: it failed
}

func newPool(p *Provider, size int) *pool { return &pool{p: p, size: size, idle: poolIdle} }

func parsePool(v string) (int, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 || n > maxPool {
		return 0, setting(fmt.Sprintf("%s %q is not a number from 0 to %d", settingPool, clip(v), maxPool))
	}
	return n, nil
}

// key says which creations can share a built sandbox: those whose requests
// differ only in what setPurpose fills in. It is empty for those that are not
// served from a pool: an id of their own that they may have from before, and
// content that another may change or remove.
func (pl *pool) key(r *providers.CreateRequest) string {
	fresh := r.NewID || r.RequestID == ""
	if pl.size == 0 || !fresh || r.Image != "" || r.Snapshot != "" || r.Root.Dir != "" || len(r.Root.Expose) > 0 || r.Root.Writable ||
		r.Scratch == "disk" || r.Isolation != "" && r.Isolation != "container" || r.Resources.DiskRead != 0 || r.Resources.DiskWrite != 0 ||
		r.Network != nil && (r.Network.Mode == "list" || len(r.Network.Allow) > 0) {
		return ""
	}
	k := *r // a field that is new is part of the key until it is known not to be
	k.RequestID, k.NewID, k.Lifetime, k.Detached = "", false, 0, false
	k.Env, k.Metadata, k.WorkDir = nil, nil, ""
	if k.User != "root" {
		k.User = ""
	}
	k.Artifacts = slices.Clone(k.Artifacts)
	for i := range k.Artifacts {
		k.Artifacts[i].Path = ""
	}
	b, err := json.Marshal(k)
	if err != nil {
		return ""
	}
	return string(b)
}

// blank is o without its purpose and for another sandbox.
func (o *order) blank(host *cgroupHost) *order {
	c := *o
	c.RequestID, c.digest = "", ""
	c.Lifetime, c.Detached, c.Env, c.Metadata, c.WorkDir = defaultLifetime, false, nil, nil, ""
	c.again = c.CreateRequest
	c.id = randomText(idLength)
	c.groups = host.plan(c.id, c.limits.cgroup(host.disks))
	return &c
}

// fits reports whether what was built for b is what o needs.
func (o *order) fits(b *order) bool { return b != nil && o.poolKey == b.poolKey && o.exe == b.exe }

// enter notes that a creation begins, during which nothing is built.
func (pl *pool) enter() {
	pl.mu.Lock()
	pl.busy++
	pl.mu.Unlock()
}

// leave notes that the creation of o has ended. One that succeeded decides what
// is built next.
func (pl *pool) leave(t *tree, o *order, succeeded bool) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.busy--
	if succeeded && o.poolKey != "" && !pl.ended {
		pl.wish, pl.tree = o.blank(pl.p.groups()), t
		if pl.kick == nil && !pl.keepLocked() {
			return
		}
	}
	if pl.busy == 0 {
		pl.wakeLocked()
	}
}

func (pl *pool) wakeLocked() {
	if pl.kick == nil {
		return
	}
	select {
	case pl.kick <- struct{}{}:
	default: // it will look anyway
	}
}

// keepLocked starts the keeper, unless the provider is closed. The caller is an
// operation of the provider, so that Close waits still.
func (pl *pool) keepLocked() bool {
	pl.p.mu.Lock()
	defer pl.p.mu.Unlock()
	if pl.p.closed {
		return false
	}
	ctx, cancel := context.WithCancel(context.Background())
	pl.kick, pl.cancel = make(chan struct{}, 1), cancel
	pl.p.wg.Add(1)
	go func() {
		defer pl.p.wg.Done()
		defer cancel()
		pl.keep(ctx, pl.kick)
	}()
	return true
}

// keep is the keeper.
func (pl *pool) keep(ctx context.Context, kick <-chan struct{}) {
	for {
		wait, ok := pl.step(ctx)
		if !ok {
			return
		}
		if wait == 0 {
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-kick:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// step removes what has waited too long or is too much, then builds one where
// one is missing. It returns how long there is nothing more to do, and false
// when there is nothing left at all.
func (pl *pool) step(ctx context.Context) (wait time.Duration, ok bool) {
	pl.mu.Lock()
	now := time.Now()
	var old []*spare
	var drained []chan struct{}
	drained, pl.drained = pl.drained, nil
	if pl.ended || drained != nil {
		old, pl.ready, pl.wish = pl.ready, nil, nil
	}
	for len(pl.ready) > 0 && !now.Before(pl.ready[0].until) {
		old, pl.ready = append(old, pl.ready[0]), pl.ready[1:]
		if pl.wish != nil && old[len(old)-1].b.o.poolKey == pl.wish.poolKey {
			pl.wish = nil // nobody came
		}
	}
	var f *fill
	if w := pl.wish; w != nil && pl.busy == 0 {
		have := 0
		for _, s := range pl.ready {
			if w.fits(s.b.o) {
				have++
			}
		}
		if have < pl.size {
			if len(pl.ready) >= pl.size { // of an earlier wish
				i := slices.IndexFunc(pl.ready, func(s *spare) bool { return !w.fits(s.b.o) })
				old, pl.ready = append(old, pl.ready[i]), slices.Delete(pl.ready, i, i+1)
			}
			f = &fill{order: w.blank(pl.p.groups()), done: make(chan struct{})}
			pl.filling = f
		}
	}
	done := old == nil && f == nil && pl.wish == nil && len(pl.ready) == 0
	if done {
		pl.kick, pl.cancel = nil, nil
	}
	t := pl.tree
	wait = pl.idle
	if len(pl.ready) > 0 {
		wait = pl.ready[0].until.Sub(now)
	}
	pl.mu.Unlock()

	for _, s := range old {
		s.drop()
	}
	for _, c := range drained {
		close(c)
	}
	if f != nil {
		pl.fill(ctx, t, f)
	}
	if old != nil || f != nil {
		wait = 0
	}
	return wait, !done
}

// fill builds one sandbox.
func (pl *pool) fill(ctx context.Context, t *tree, f *fill) {
	s, err := pl.build(ctx, t, f.order)
	for try := 1; try < maxTries && wasReplaced(err); try++ { // as in create
		s, err = pl.build(ctx, t, f.order.blank(pl.p.groups()))
	}
	pl.mu.Lock()
	defer pl.mu.Unlock()
	defer close(f.done)
	pl.filling = nil
	switch {
	case err != nil:
		if ctx.Err() == nil {
			pl.p.log.Debug("no sandbox built ahead", "err", err)
		}
		pl.wish = nil // until a creation has shown that it can be done
	case f.claimed:
		f.spare = s
	default:
		s.until = time.Now().Add(pl.idle)
		pl.ready = append(pl.ready, s)
	}
}

func (pl *pool) build(ctx context.Context, t *tree, o *order) (_ *spare, err error) {
	// Before the construction: what changes during it counts.
	view := newHostView()
	e, lock, err := t.newEntry(o.id)
	if err != nil {
		view.close()
		return nil, err
	}
	b := &builder{p: pl.p, t: t, e: e, o: o, spare: true, chosen: -1}
	b.keep(lock)
	defer func() {
		if err != nil {
			view.close()
			_ = b.undo() // the collector tries again
			e.close()
		}
	}()
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	b.spec.rest = b.finish
	if b.proc, err = launch(ctx, b.spec); err != nil {
		return nil, err
	}
	b.closeFiles()
	if err := b.reserve(); err != nil {
		return nil, err
	}
	conn, err := b.e.dial(ctx)
	if err != nil {
		return nil, err
	}
	view.look(b.spec)
	return &spare{b: b, view: view, conn: conn}, nil
}

// create gives a creation a sandbox that waits; nil: there is none, or none
// that still lives.
func (pl *pool) create(ctx context.Context, o *order) (*providers.Sandbox, error) {
	if o.poolKey == "" {
		return nil, nil
	}
	for {
		s := pl.take(ctx, o)
		if s == nil {
			return nil, nil
		}
		if hungUp(s.b.handover) {
			s.drop()
			continue
		}
		sb, err := s.assign(ctx, o)
		if err == nil {
			return sb, nil
		}
		if ctx.Err() != nil {
			return nil, cancelled(ctx, "create sandbox")
		}
		pl.p.log.DebugContext(ctx, "a sandbox built ahead was of no use", "sandbox_id", s.b.e.id, "err", err)
	}
}

// take removes a sandbox that fits o from the pool. One that is just being
// built is waited for: it is ready before another would be.
func (pl *pool) take(ctx context.Context, o *order) *spare {
	pl.mu.Lock()
	if i := slices.IndexFunc(pl.ready, func(s *spare) bool { return o.fits(s.b.o) }); i >= 0 {
		s := pl.ready[i]
		pl.ready = slices.Delete(pl.ready, i, i+1)
		pl.mu.Unlock()
		return s
	}
	f := pl.filling
	if f == nil || f.claimed || !o.fits(f.order) {
		pl.mu.Unlock()
		return nil
	}
	f.claimed = true
	pl.mu.Unlock()
	<-f.done // startTimeout bounds it; a cancelled creation must not lose it
	return f.spare
}

// drain removes what waits and returns when it is gone.
func (pl *pool) drain() {
	pl.mu.Lock()
	if pl.kick == nil {
		pl.mu.Unlock()
		return
	}
	gone := make(chan struct{})
	pl.drained = append(pl.drained, gone)
	pl.wakeLocked()
	pl.mu.Unlock()
	<-gone
}

// close makes the keeper remove everything and end; the provider waits for it.
func (pl *pool) close() {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.ended = true
	if pl.cancel != nil {
		pl.cancel()
	}
	pl.wakeLocked()
}

// errStale is that the machine has changed since a sandbox was built.
var errStale = errors.New("it does not show what the machine has now")

// assign gives the sandbox its purpose. On an error nothing of it is left.
func (s *spare) assign(ctx context.Context, o *order) (_ *providers.Sandbox, err error) {
	b := s.b
	defer b.e.close()
	defer s.view.close()
	defer s.conn.Close()
	given := *o
	given.id, given.groups = b.e.id, b.o.groups
	b.o, b.spare = &given, false
	defer func() {
		b.handover.Close()
		if err != nil {
			_ = b.undo() // the collector tries again
		}
	}()
	b.setPurpose()
	if err := sendPurpose(b.handover, b.conf.purpose); err != nil {
		return nil, err
	}
	if err := knock(s.conn); err != nil {
		return nil, err
	}
	// While init gets ready. It ends with us until complete has let it go.
	if !s.view.unchanged() {
		return nil, errStale
	}
	if err := b.saveConfig(); err != nil {
		return nil, err
	}
	return b.complete(ctx, s.conn)
}

// drop removes the sandbox.
func (s *spare) drop() {
	s.view.close()
	s.conn.Close()
	s.b.handover.Close()
	if err := s.b.undo(); err != nil {
		s.b.p.log.Warn("remains of a sandbox not removed", "sandbox_id", s.b.e.id, "err", err)
	}
	s.b.e.close()
}

// pooled reports whether id is a sandbox that waits: nobody was given it yet.
func (e *entry) pooled() bool {
	_, err := os.Lstat(e.dir.address(fileConfig))
	if err == nil {
		return false
	}
	_, err = os.Lstat(e.dir.address(fileSpare))
	return err == nil
}
