//go:build linux

package local

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// killLimit bounds the end of one sandbox.
const killLimit = 30 * time.Second

// collectID removes what a dead sandbox left. errBusy: it lives, or somebody
// else is removing it. errAsleep: it hibernates, and stays. No error: there is nothing of it any more.
func (t *tree) collectID(id string) error {
	for {
		if err := t.collectOnce(id); !errors.Is(err, errTaken) {
			return err
		}
	}
}

// collectEnded removes what a sandbox left whose init this process has seen end.
// For a moment its lock may seem to be held: a process that is just being
// started has copies of all descriptors of ours, until its program begins.
func (t *tree) collectEnded(id string) error {
	for deadline := time.Now().Add(2 * time.Second); ; time.Sleep(time.Millisecond) {
		if err := t.collectID(id); !errors.Is(err, errBusy) || time.Now().After(deadline) {
			return err
		}
	}
}

// errTaken says that another collector has made a new lock in the moment
// between the removal of the lock and that of its directory.
var errTaken = errors.New("taken over by another collector")

func (t *tree) collectOnce(id string) error {
	e, err := t.openEntry(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer e.close()
	lock, err := e.dir.tryLock(fileLock)
	if errors.Is(err, fs.ErrNotExist) { // the directory was removed after we opened it
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if e.asleep() {
		return cmp.Or(t.tidy(e), errAsleep)
	}
	err = t.remove(e, true)
	if err != nil && !errors.Is(err, errTaken) {
		err = &remainsError{err}
	}
	return err
}

// remainsError says that a sandbox is dead, and why its remains are still there.
type remainsError struct{ err error }

func (e *remainsError) Error() string { return "remains of a dead sandbox: " + e.err.Error() }
func (e *remainsError) Unwrap() error { return e.err }

func isRemains(err error) bool {
	_, ok := errors.AsType[*remainsError](err)
	return ok
}

// remove removes a sandbox whose lock the caller holds, and records its end if
// it ever was ready and record says so. Every step can be repeated: when this
// process dies in between, the next one that gets the lock starts again.
func (t *tree) remove(e *entry, record bool) error {
	var conf savedConfig
	var state savedState
	confErr := e.load(fileConfig, &conf)
	if errors.Is(confErr, fs.ErrNotExist) {
		confErr = e.load(fileSpare, &conf)
	}
	stateErr := e.load(fileState, &state)

	if confErr != nil {
		conf.Block = -1
	}
	if err := t.release(e, &conf, &state); err != nil {
		return err
	}
	// A disk that is full does not keep us from making room.
	end := endRecord{ID: e.id, Why: e.endNote(), At: time.Now(), Request: conf.Request}
	record = record && confErr == nil && stateErr == nil && t.recordEnd(end) != nil
	if err := e.dir.clear(fileLock); err != nil {
		return err
	}
	if err := e.dir.remove(fileLock); err != nil && err != unix.ENOENT {
		return err
	}
	switch err := unix.Unlinkat(t.boxes.fd(), e.id, unix.AT_REMOVEDIR); err {
	case nil, unix.ENOENT:
		if record { // there may be room now; without the record the id is unknown
			_ = t.recordEnd(end)
		}
		if len(conf.Layers) > 0 { // perhaps nobody else used them
			return t.sweepLayers(context.Background())
		}
		return nil
	case unix.ENOTEMPTY:
		return errTaken
	default:
		return fmt.Errorf("remove sandbox %s: %w", e.id, err)
	}
}

// release waits for the end of all processes of a dead sandbox and gives back
// what it had outside of its directory. The zero state is of one that never was
// ready.
func (t *tree) release(e *entry, conf *savedConfig, state *savedState) error {
	// The lock is free a moment before the kernel has ended the other
	// processes of the namespace.
	if f, err := state.open(); err == nil {
		err = t.waitEnd(e, f, killLimit)
		f.Close()
		if err != nil {
			return fmt.Errorf("sandbox %s does not end: %w", e.id, err)
		}
	}
	if err := removeCgroups(ownCgroups(e.id, conf.Cgroups)); err != nil {
		return err
	}
	if err := removeScratch(e); err != nil {
		return err
	}
	if conf.Block < 0 {
		return nil
	}
	return releaseLease(t.ids, conf.Block)
}

// collect removes what all dead sandboxes left, leases and executables that
// nobody uses, and old records. Any number of processes may do so at once.
func (t *tree) collect(ctx context.Context) error {
	names, err := t.boxes.names()
	errs := []error{err}
	for _, id := range names {
		if ctx.Err() != nil {
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
		if checkID("collect", id) != nil {
			continue // not ours; nothing of ours has such a name
		}
		switch err := t.collectID(id); {
		case err == nil:
			t.removals.note(providers.RemovedSandbox, id)
		case !errors.Is(err, errBusy) && !errors.Is(err, errAsleep):
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, collectLeases(t.ids, t.removals), t.collectSnapshots(ctx), t.sweepLayers(ctx))...)
}

// endRecord is one line of the file ended.
type endRecord struct {
	ID      string    `json:"id"`
	Why     string    `json:"why,omitempty"`
	At      time.Time `json:"at"`
	Request string    `json:"request,omitempty"`
}

const (
	fileEnded  = "ended"
	lockEnded  = ".ended.lock"
	keepEnded  = 1000
	endedAge   = time.Hour
	endedLimit = 2 << 20 // bytes; records are about 150
)

// recordEnd notes why a sandbox ended, so that its id gives more than "unknown"
// for a while.
func (t *tree) recordEnd(r endRecord) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	lock, err := t.lockEnded()
	if err != nil {
		return err
	}
	defer lock.Close()
	f, err := t.base.open(fileEnded, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	st, serr := f.Stat()
	f.Close()
	if err == nil && serr == nil && st.Size() > endedLimit/4 {
		err = t.pruneEnded()
	}
	return err
}

// lockEnded serialises writers of the file ended; each holds the lock for a
// fraction of a millisecond.
func (t *tree) lockEnded() (closer, error) {
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(200 * time.Microsecond) {
		f, err := t.base.tryLock(lockEnded)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, errBusy) || time.Now().After(deadline) {
			return nil, fmt.Errorf("lock the record of ended sandboxes: %w", err)
		}
	}
}

type closer interface{ Close() error }

// pruneEnded keeps the newest records. The lock is held.
func (t *tree) pruneEnded() error {
	all, err := t.base.read(fileEnded, endedLimit)
	if err != nil {
		return t.base.remove(fileEnded) // damaged or far too large
	}
	lines := slices.Collect(bytes.Lines(all))
	lines = lines[max(0, len(lines)-keepEnded):]
	return t.base.write(fileEnded, bytes.Join(lines, nil))
}

// ended looks for the record of a sandbox.
func (t *tree) ended(id string) (endRecord, bool) {
	all, err := t.base.read(fileEnded, endedLimit)
	if err != nil {
		return endRecord{}, false
	}
	at := bytes.LastIndex(all, []byte(`{"id":"`+id+`"`))
	if at < 0 {
		return endRecord{}, false
	}
	line, _, _ := bytes.Cut(all[at:], []byte("\n"))
	var r endRecord
	if json.Unmarshal(line, &r) != nil || time.Since(r.At) > endedAge {
		return endRecord{}, false
	}
	return r, true
}

func noSandbox(op, root, id string) error {
	return &errdefs.Error{Code: "E2020", Op: op, Message: "no sandbox " + id + " in " + root}
}

// gone is the error for a sandbox that is not there: why it ended when that is
// known, else E2020.
func (t *tree) gone(op, id string) error {
	r, ok := t.ended(id)
	if !ok {
		return noSandbox(op, t.path, id)
	}
	code, what := errdefs.Code("E2023"), "ended by itself"
	switch r.Why {
	case endExpired:
		code, what = "E2021", "reached the end of its lifetime"
	case endKilled:
		code, what = "E2022", "was killed"
	case endMemory:
		code, what = "E2023", "took more memory than its limit and ended"
	case endClient:
		code, what = "E2022", "ended with the program that created it"
	}
	hint := ""
	if r.Why == endClient {
		hint = "create it with Detached to let it live on"
	}
	return &errdefs.Error{Code: code, Op: op, Suggestion: hint,
		Message: "sandbox " + id + " " + what + " at " + r.At.Format(time.RFC3339)}
}
