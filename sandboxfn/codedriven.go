package sandboxfn

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agent-sandbox/sandbox-go/runtime/code/drivers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// drivenContexts are the contexts of a handle whose sandbox has no interpreter of
// its own: their processes are started from here, and end with the handle.
type drivenContexts struct {
	testOnlyIdle atomic.Int64 // in place of drivers.IdleTimeout, if not zero; nanoseconds

	mu     sync.Mutex
	via    string                    // guarded by mu; "port" or "process" once that is known
	byID   map[string]*drivenContext // guarded by mu
	shared map[string]*drivenContext // guarded by mu; the default contexts, by language
}

// drivenContext is one of them.
type drivenContext struct {
	id     string
	lang   drivers.Language
	turn   chan struct{} // holds one value while a cell runs
	mu     sync.Mutex
	dir    string          // guarded by mu; empty until it is known
	engine *drivers.Engine // guarded by mu; nil: not started, or it died
	lost   bool            // guarded by mu; an engine died, and nobody was told yet
	gone   bool            // guarded by mu; it was closed
	users  int             // guarded by mu; who runs a cell or waits for it
	unused *time.Timer     // guarded by mu; removes the context
}

// enter keeps the context from being removed because nobody uses it, until leave.
// It reports false when it is gone.
func (c *drivenContext) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return false
	}
	c.users++
	c.unused.Stop()
	return true
}

func (c *drivenContext) leave(idle time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users--
	if c.users == 0 && !c.gone {
		c.unused.Reset(idle)
	}
}

func (d *drivenContexts) idle() time.Duration {
	return cmp.Or(time.Duration(d.testOnlyIdle.Load()), drivers.IdleTimeout)
}

// driven finds the context that the process way has for id, or the default one of
// the language, which is made when there is none. The caller has entered it.
func (sb *Sandbox) driven(op, id, language string) (*drivenContext, error) {
	d := &sb.codes
	d.mu.Lock()
	defer d.mu.Unlock()
	if id != "" {
		if c := d.byID[id]; c != nil && c.enter() {
			return c, nil
		}
		return nil, errdefs.New("E3010", op, "no code context "+id)
	}
	name := drivers.Canonical(language)
	if c := d.shared[name]; c != nil && c.enter() {
		return c, nil
	}
	c, err := sb.addDrivenLocked(op, name, "")
	if err == nil {
		d.shared[name] = c
	}
	return c, err
}

// addDrivenLocked adds a context that the caller has entered. codes.mu is held.
func (sb *Sandbox) addDrivenLocked(op, language, dir string) (*drivenContext, error) {
	d := &sb.codes
	l, ok := drivers.Find(language)
	if !ok {
		return nil, errdefs.New("E3011", op, "unsupported language \""+language+"\": there are drivers for "+strings.Join(drivers.Names(), ", "))
	}
	if d.byID == nil {
		d.byID, d.shared = map[string]*drivenContext{}, map[string]*drivenContext{}
	}
	if len(d.byID) >= drivers.MaxContexts {
		return nil, errdefs.New("E3000", op, fmt.Sprintf("too many code contexts: at most %d; close one first", drivers.MaxContexts))
	}
	c := &drivenContext{id: drivers.NewID(), lang: l, dir: dir, turn: make(chan struct{}, 1), users: 1}
	c.unused = time.AfterFunc(d.idle(), func() { sb.expireDriven(c) })
	c.unused.Stop()
	d.byID[c.id] = c
	return c, nil
}

// expireDriven removes a context that nobody has used for too long.
func (sb *Sandbox) expireDriven(c *drivenContext) {
	leave, err := sb.enter()
	if err != nil {
		return // it ended with the handle
	}
	defer leave()
	c.mu.Lock()
	used := c.users > 0
	c.gone = c.gone || !used // from here on nobody enters
	c.mu.Unlock()
	if !used {
		sb.dropDriven(c)
	}
}

// makeDriven makes a context and starts its process.
func (sb *Sandbox) makeDriven(ctx context.Context, op, language, dir string) (*drivenContext, error) {
	sb.codes.mu.Lock()
	c, err := sb.addDrivenLocked(op, drivers.Canonical(language), dir)
	sb.codes.mu.Unlock()
	if err != nil {
		return nil, err
	}
	defer c.leave(sb.codes.idle())
	if err := c.await(ctx, sb, op); err != nil {
		sb.dropDriven(c)
		return nil, err
	}
	defer c.release()
	if _, _, err := c.running(ctx, sb, op); err != nil {
		sb.dropDriven(c)
		return nil, err
	}
	return c, nil
}

// listDriven lists the contexts, ordered by id.
func (sb *Sandbox) listDriven() []*drivenContext {
	sb.codes.mu.Lock()
	defer sb.codes.mu.Unlock()
	var out []*drivenContext
	for _, c := range sb.codes.byID {
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b *drivenContext) int { return strings.Compare(a.id, b.id) })
	return out
}

func (c *drivenContext) public(sb *Sandbox) *CodeContext {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &CodeContext{ID: c.id, Language: c.lang.Name, Dir: c.dir, sb: sb, driven: c}
}

// dropDriven ends a context.
func (sb *Sandbox) dropDriven(c *drivenContext) {
	sb.codes.mu.Lock()
	delete(sb.codes.byID, c.id)
	if sb.codes.shared[c.lang.Name] == c {
		delete(sb.codes.shared, c.lang.Name)
	}
	sb.codes.mu.Unlock()
	c.mu.Lock()
	c.gone = true
	c.unused.Stop()
	c.mu.Unlock()
	c.end("the context was removed")
}

// restartDriven gives a context a new process.
func (sb *Sandbox) restartDriven(ctx context.Context, op string, c *drivenContext) error {
	if !c.enter() {
		return closedContext(op)
	}
	defer c.leave(sb.codes.idle())
	c.end("the context was restarted")
	if err := c.await(ctx, sb, op); err != nil {
		return err
	}
	defer c.release()
	c.end("the context was restarted") // one that a waiting cell has started
	c.mu.Lock()
	c.lost = false // it was asked for
	c.mu.Unlock()
	_, _, err := c.running(ctx, sb, op)
	return err
}

// end ends the process, if there is one.
func (c *drivenContext) end(why string) {
	c.mu.Lock()
	e := c.engine
	c.engine = nil
	c.mu.Unlock()
	if e != nil {
		e.Kill(why)
		<-e.Over()
	}
}

// await waits for the turn.
func (c *drivenContext) await(ctx context.Context, sb *Sandbox, op string) error {
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return contextError(ctx, op)
	case <-sb.life.Done():
		return sb.usable()
	}
}

func (c *drivenContext) release() { <-c.turn }

func closedContext(op string) error {
	return errdefs.New("E3010", op, "the code context was closed, or was not used for too long")
}

// running returns the process, started when there is none. restarted reports that
// an earlier one had died. The caller has the turn.
func (c *drivenContext) running(ctx context.Context, sb *Sandbox, op string) (e *drivers.Engine, restarted bool, err error) {
	c.mu.Lock()
	e, gone, dir := c.engine, c.gone, c.dir
	c.mu.Unlock()
	switch {
	case gone:
		return nil, false, closedContext(op)
	case e != nil && !e.Dead():
		return e, false, nil
	}
	died := e != nil
	e, dir, err = sb.startDriver(ctx, c.lang, dir)
	if err != nil {
		return nil, false, renamed(err, op)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone { // meanwhile
		go e.Kill("the context was removed")
		return nil, false, closedContext(op)
	}
	c.engine, c.dir = e, dir
	restarted, c.lost = c.lost || died, false
	return e, restarted, nil
}

// runDriven runs a cell in c, which the caller has entered. It returns when ctx ends;
// the cell is interrupted then, and the next one waits for its end.
func (sb *Sandbox) runDriven(ctx context.Context, op string, c *drivenContext, code string, o *CodeOptions) (*Execution, error) {
	end := func() { c.leave(sb.codes.idle()) } // what is left to do when this fails, or after the cell
	begun := false
	defer func() {
		if !begun {
			end()
		}
	}()
	if err := drivers.Check(code, o.Env); err != nil {
		return nil, errdefs.New("E3011", op, err.Error())
	}
	leave, err := sb.enter()
	if err != nil {
		return nil, err
	}
	end = func() { leave(); c.leave(sb.codes.idle()) }
	if err := c.await(ctx, sb, op); err != nil {
		return nil, err
	}
	end = func() { c.release(); leave(); c.leave(sb.codes.idle()) }
	engine, restarted, err := c.running(ctx, sb, op)
	if err != nil {
		return nil, err
	}
	begun = true
	ex := &Execution{Via: "process", Restarted: restarted}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, done := make(chan []byte), make(chan struct{})
	go func() {
		defer end()
		defer close(done)
		alive := engine.Run(ctx, &drivers.Cell{Code: code, Env: o.Env, Timeout: max(o.Timeout, 0)}, func(e *drivers.Event) {
			select {
			case events <- e.Line():
			case <-ctx.Done():
			}
		})
		if !alive {
			c.mu.Lock()
			if c.engine == engine {
				c.engine = nil
			}
			c.lost = true
			c.mu.Unlock()
		}
	}()
	for {
		select {
		case line := <-events:
			if err := ex.take(line, o); err != nil {
				return nil, err
			}
		case <-done:
			if err := sb.usable(); err != nil {
				return nil, err
			}
			return ex, nil
		case <-ctx.Done():
			return nil, contextError(ctx, op)
		}
	}
}
