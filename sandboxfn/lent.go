package sandboxfn

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"sync"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// lent is what one call lends to its worker: callbacks, sequences, readers and
// writers, by number. It also holds what the worker lends to the result.
type lent struct {
	trail *trail // of the call; nil: nobody follows it

	mu     sync.Mutex
	objs   []*lentObject       // guarded by mu
	used   bool                // guarded by mu; by a worker, so the call can't begin again
	after  []func(error) error // guarded by mu
	spools *spoolFile          // guarded by mu; nil before the first, and after the end
	ended  bool                // guarded by mu
	outs   map[string]bool     // guarded by mu; paths that the call writes
	above  map[string]string   // guarded by mu; directories that those are in, each with one of them

	ctx context.Context // of the call; nil: it is not known
	fn  *function       // nil: it is not known
}

// lentObject is something that is lent. One goroutine at a time runs the user's
// code behind it: a worker must not be able to do what the user has no lock
// against.
type lentObject struct {
	v  any
	mu sync.Mutex
}

// Export implements [envelope.Exporter].
func (l *lent) Export(v any) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.objs = append(l.objs, &lentObject{v: v})
	return uint64(len(l.objs) - 1), nil
}

// After implements [envelope.Exporter].
func (l *lent) After(f func(error) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.after = append(l.after, f)
}

// Returned implements [envelope.Importer]; nothing is done between a result and
// its return that After is not for.
func (l *lent) Returned(f func() error) {
	l.After(func(err error) error {
		if err != nil {
			return nil
		}
		return f()
	})
}

// Ended implements [envelope.Importer].
func (l *lent) Ended(f func()) {
	l.After(func(error) error {
		f()
		return nil
	})
}

// Import implements [envelope.Importer] for what a result borrows: the bytes of
// a reader, which are in a file that its last user closes.
func (l *lent) Import(t reflect.Type, n uint64) (reflect.Value, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n < uint64(len(l.objs)) && envelope.LiveKindOf(t) == envelope.LiveReader {
		if s, ok := l.objs[n].v.(*spool); ok && !s.taken {
			s.taken = true
			return reflect.ValueOf(s.take()), nil
		}
	}
	return reflect.Value{}, errdefs.New("E9005", "borrow", fmt.Sprintf("the result lends no %s under number %d", t, n))
}

// object returns what is lent under number n, and notes that it was used.
func (l *lent) object(n uint64) (*lentObject, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n >= uint64(len(l.objs)) {
		return nil, errdefs.New("E9005", "call back", fmt.Sprintf("nothing is lent under number %d", n))
	}
	if r, ok := l.objs[n].v.(envelope.LentReader); ok {
		if _, again := r.R.(*lentContent); again { // for whoever reads it, it begins anew
			return l.objs[n], nil
		}
	}
	l.used = true
	return l.objs[n], nil
}

// untouched reports whether no worker has used anything yet.
func (l *lent) untouched() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.used
}

// end runs what was registered for the end of the call, which has failed with
// err unless it is nil, and returns the first error of that.
func (l *lent) end(err error) error {
	l.mu.Lock()
	fs := l.after
	l.after = nil
	spools := l.spools
	l.spools, l.ended = nil, true
	l.mu.Unlock()
	var bad error
	for _, f := range fs {
		failed := err
		if failed == nil {
			failed = bad
		}
		if e := f(failed); e != nil && bad == nil {
			bad = e
		}
	}
	if err := spools.close(); bad == nil {
		bad = err
	}
	l.trail.end(cmp.Or(err, bad))
	return bad
}

// newSpool makes a place for bytes and returns its number.
func (l *lent) newSpool() (uint64, error) {
	if err := l.mayReturnFiles(); err != nil {
		return 0, err
	}
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return 0, errdefs.New("E9009", "lend", "the call has ended")
	}
	if l.spools == nil {
		f, err := newSpoolFile()
		if err != nil {
			l.mu.Unlock()
			return 0, err
		}
		l.spools = f
	}
	all := l.spools
	l.mu.Unlock()
	s, err := all.add()
	if err != nil {
		return 0, err
	}
	return l.Export(s)
}
