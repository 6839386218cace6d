//go:build linux

package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/version"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

var _ providers.Hibernator = (*Provider)(nil)

// A sandbox that hibernates is its directory with a lock that nobody holds,
// sleep.json, and a note that it ended by going to sleep. Init writes the note
// after the client has written sleep.json, so that there is never less than a
// whole sandbox; a new note takes the place of the old one when it has been
// woken, so that there is never more than one.
const (
	fileSleep  = "sleep.json"
	fileNewEnd = "end.new" // note of a sandbox that is being woken
)

// asleepFiles are what the directory of such a sandbox holds.
var asleepFiles = []string{fileLock, fileConfig, fileSleep, fileEnd}

// savedSleep is sleep.json: what it takes to start the sandbox again. Unlike
// config.json it holds secrets: the token and the environment.
type savedSleep struct {
	Token   string                  `json:"token"`
	Request providers.CreateRequest `json:"request"`
	At      time.Time               `json:"at"`
	fileSet
}

// errAsleep says that a sandbox hibernates.
var errAsleep = errors.New("it hibernates")

func asleepError(op, id string) error {
	return &errdefs.Error{Code: "E2024", Op: op, Message: "sandbox " + id + " is stopped", Err: errAsleep, Suggestion: "connect to it: that starts it again"}
}

// asleep reports whether e is a sandbox that hibernates. The lock is the caller's,
// or there is no state.json.
func (e *entry) asleep() bool {
	var st unix.Stat_t
	return e.endNote() == endHibernated && unix.Fstatat(e.dir.fd(), fileSleep, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// resting reports whether e hibernates although its lock is held: somebody looks
// whether anything is left of its last life, or has not got far with waking it.
func (e *entry) resting() bool {
	var st unix.Stat_t
	return errors.Is(unix.Fstatat(e.dir.fd(), fileState, &st, unix.AT_SYMLINK_NOFOLLOW), unix.ENOENT) && e.asleep()
}

// Hibernate keeps the files that the sandbox can write, as Snapshot does, and
// ends every process of it: unlike a pause it needs no memory, and outlives the
// machine's restart. Processes, what they had in memory, /run and /dev/shm are
// gone.
//
// The sandbox then is providers.StateStopped. It has no end: it stays, also when
// it was attached and its client ends, until Kill removes it. Connect starts it
// again under its id, with the token, environment, metadata, limits, network and
// volumes that it was created with; attached to whoever connects, unless it was
// created detached. Its lifetime then starts anew: the one of its creation, or of
// the ConnectRequest when that is longer. While it is stopped its token and
// environment are in a file in the state directory.
//
// When Hibernate fails, or its process dies, the sandbox goes on, has ended, or is
// stopped as a whole. A sandbox that is stopped already is E2024.
func (p *Provider) Hibernate(ctx context.Context, id string) error {
	const op = "hibernate sandbox"
	t, e, conf, done, err := p.enterToKeep(ctx, op, id)
	if err != nil {
		return err
	}
	defer done()
	if err := t.putToSleep(ctx, e, conf); err != nil {
		return t.captureError(ctx, op, id, err)
	}
	return p.sleeping(ctx, t, id)
}

// putToSleep keeps the files and makes init end.
func (t *tree) putToSleep(ctx context.Context, e *entry, conf *savedConfig) error {
	c, err := t.takeFiles(ctx, e, opHibernate, conf)
	if err != nil {
		return err
	}
	defer c.close()
	token, err := e.token()
	if err != nil {
		return err
	}
	s := savedSleep{Token: token.Reveal(), At: time.Now().Round(0), fileSet: conf.fileSet}
	if err := json.Unmarshal(c.request, &s.Request); err != nil {
		return fmt.Errorf("request of the sandbox: %w", err)
	}
	err = t.keep(ctx, c, &s.fileSet, func() error {
		b, err := json.Marshal(s)
		if err == nil {
			// From here on nobody gives up: init may hear of commit at any moment,
			// and its note counts only together with the file.
			err = c.hold()
		}
		if err != nil {
			return err
		}
		return e.dir.writeSynced(fileSleep, b)
	})
	if err != nil {
		return err
	}
	// When it fails, whoever gets the lock finds out whether init has heard: the
	// file says nothing without the note. But when init has refused it goes on.
	err = c.commit()
	if errdefs.CodeOf(err) != "" {
		_ = e.dir.remove(fileSleep)
		c.close()
		_ = t.sweepLayers(context.WithoutCancel(ctx)) // otherwise the next collector does
	}
	return err
}

// sleeping waits until nothing is left that runs.
func (p *Provider) sleeping(ctx context.Context, t *tree, id string) error {
	const op = "hibernate sandbox"
	p.mu.Lock()
	c := p.live[id]
	p.mu.Unlock()
	if c != nil {
		select {
		case <-c.done:
		case <-ctx.Done():
			return cancelled(ctx, op)
		}
	}
	err := t.settle(ctx, op, id)
	if errors.Is(err, errAsleep) {
		return nil
	}
	return err
}

// tidy removes what the life before left of a sandbox that hibernates. Its lock
// is held.
func (t *tree) tidy(e *entry) error {
	names, err := e.dir.allNames()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(names, func(n string) bool { return !slices.Contains(asleepFiles, n) }) {
		return nil
	}
	return t.tidyAll(e)
}

func (t *tree) tidyAll(e *entry) error {
	var conf savedConfig
	if err := e.load(fileConfig, &conf); err != nil {
		return err
	}
	var state savedState
	_ = e.load(fileState, &state) // never ready
	if err := t.release(e, &conf, &state); err != nil {
		return err
	}
	var s savedSleep
	if err := e.load(fileSleep, &s); err != nil {
		return err
	}
	// Layers of which one was made are still named by what the sandbox had
	// started with, and by nothing else that is needed.
	squashed := slices.ContainsFunc(conf.Layers, func(l string) bool { return !slices.Contains(s.Layers, l) })
	if squashed {
		conf.fileSet = s.fileSet
		b, err := json.Marshal(conf)
		if err == nil {
			err = e.dir.writeSynced(fileConfig, b)
		}
		if err != nil {
			return err
		}
	}
	if err := e.dir.clear(asleepFiles...); err != nil || !squashed {
		return err
	}
	return t.sweepLayers(context.Background())
}

// describeAsleep describes a sandbox that hibernates.
func describeAsleep(id string, conf *savedConfig) *providers.Sandbox {
	return &providers.Sandbox{
		ID: id, Provider: Name, Template: conf.Template, State: providers.StateStopped, CreatedAt: conf.CreatedAt,
		Metadata: conf.Metadata, Resources: conf.Resources, DefaultUser: conf.User, RuntimeVersion: version.Envd,
	}
}

// sleeper is what waking needs to know of the life before.
type sleeper struct {
	token   string
	created time.Time
}

// wake starts a sandbox that hibernates. errBusy: somebody else does, or it does
// not hibernate any more.
func (p *Provider) wake(ctx context.Context, op, id string, lifetime time.Duration) (_ *providers.Sandbox, err error) {
	defer func() { err = orCancelled(ctx, op, err) }()
	t, done, err := p.begin(ctx, op)
	if err != nil {
		return nil, err
	}
	defer done()
	e, err := t.openEntry(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errBusy
	}
	if err != nil {
		return nil, err
	}
	defer e.close()
	lock, err := e.dir.tryLock(fileLock)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errBusy
	}
	if err != nil {
		return nil, err
	}
	o, err := p.wakeOrder(ctx, t, e, lifetime)
	if err != nil {
		lock.Close()
		return nil, err
	}
	cradle := o.makeCradle()
	defer cradle.close()
	sb, err := p.build(ctx, t, e, lock, cradle, o)
	if err == nil && o.template != nil {
		err = startTemplate(ctx, sb, o.template) // its files must not be lost: it lives on
	}
	return sb, stateError(op, "start sandbox "+id, orCancelled(ctx, op, err))
}

func (p *Provider) wakeOrder(ctx context.Context, t *tree, e *entry, lifetime time.Duration) (*order, error) {
	if !e.asleep() {
		return nil, errBusy
	}
	var conf savedConfig
	var s savedSleep
	if err := errors.Join(t.tidy(e), e.load(fileConfig, &conf), e.load(fileSleep, &s)); err != nil {
		return nil, err
	}
	req := s.Request
	req.Lifetime = max(req.Lifetime, lifetime)
	o, err := p.order(ctx, req)
	if err == nil {
		err = o.checkUser()
	}
	if err != nil {
		return nil, err
	}
	o.id, o.digest = e.id, conf.Request
	host := p.groups()
	o.groups = host.plan(o.id, o.limits.cgroup(host.disks)) // under its own id, by which they are removed
	o.again, o.made, o.imageDigest, o.template = s.Request, conf.Template, conf.Root.Digest, conf.Compiled
	o.asleep = &sleeper{token: s.Token, created: conf.CreatedAt}
	return o, o.useFiles(s.fileSet, p.exposed(o))
}

// awake makes the note of the new life the one that counts.
func (b *builder) awake() error {
	if b.o.asleep == nil {
		return nil
	}
	b.woken = true
	return unix.Renameat(b.e.dir.fd(), fileNewEnd, b.e.dir.fd(), fileEnd)
}

// unwake undoes awake. Init may run, and what it notes says nothing any more.
func (b *builder) unwake() error {
	if !b.woken {
		return nil
	}
	return b.e.dir.writeSynced(fileEnd, []byte(endHibernated+"\n"))
}

// forgetSleep removes what the sandbox could be started from once more: now that
// it runs it would be out of date.
func (b *builder) forgetSleep() {
	if b.o.asleep == nil {
		return
	}
	_ = b.e.dir.remove(fileSleep) // without its note it says nothing
}

// backToSleep undoes a wake that failed. What is running has been killed.
func (b *builder) backToSleep() error {
	if len(b.files) == 0 { // init had the lock
		err := b.t.collectID(b.o.id)
		if errors.Is(err, errBusy) || errors.Is(err, errAsleep) {
			err = nil
		}
		return err
	}
	err := b.t.tidyAll(b.e)
	b.closeFiles()
	return err
}

// killAsleep removes a sandbox that hibernates. errBusy: it does not, any more.
func (t *tree) killAsleep(id string) error {
	e, err := t.openEntry(id)
	if errors.Is(err, fs.ErrNotExist) {
		return noSandbox("kill sandbox", t.path, id)
	}
	if err != nil {
		return err
	}
	defer e.close()
	lock, err := e.dir.tryLock(fileLock)
	if errors.Is(err, fs.ErrNotExist) {
		return noSandbox("kill sandbox", t.path, id)
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if !e.asleep() {
		return errBusy
	}
	var conf savedConfig
	confErr := e.load(fileConfig, &conf)
	if err := e.dir.remove(fileSleep); err != nil { // from here on it is dead
		return &os.PathError{Op: "remove", Path: fileSleep, Err: err}
	}
	if confErr == nil {
		if err := t.recordEnd(endRecord{ID: id, Why: endKilled, At: time.Now(), Request: conf.Request}); err != nil {
			return err
		}
	}
	return t.remove(e, false)
}
