package sandboxfn

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"reflect"
	"sync"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// lent is what one call lends to its worker: callbacks, sequences, readers and
// writers, by number. It also holds what the worker lends to the result.
type lent struct {
	trail *trail // of the call; nil: nobody follows it

	mu    sync.Mutex
	objs  []any               // guarded by mu
	used  bool                // guarded by mu; by a worker, so the call can't begin again
	after []func(error) error // guarded by mu
	bytes int64               // guarded by mu; in spools
}

// Export implements [envelope.Exporter].
func (l *lent) Export(v any) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.objs = append(l.objs, v)
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
		if s, ok := l.objs[n].(*spool); ok && !s.taken {
			s.taken = true
			if _, err := s.f.Seek(0, io.SeekStart); err != nil {
				return reflect.Value{}, err
			}
			return reflect.ValueOf(s.f), nil
		}
	}
	return reflect.Value{}, errdefs.New("E9005", "borrow", fmt.Sprintf("the result lends no %s under number %d", t, n))
}

// object returns what is lent under number n, and notes that it was used.
func (l *lent) object(n uint64) (any, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n >= uint64(len(l.objs)) {
		return nil, errdefs.New("E9005", "call back", fmt.Sprintf("nothing is lent under number %d", n))
	}
	if r, ok := l.objs[n].(envelope.LentReader); ok {
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
	objs := l.objs
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
	for _, o := range objs {
		if s, ok := o.(*spool); ok && !s.taken {
			s.f.Close()
		}
	}
	l.trail.end(cmp.Or(err, bad))
	return bad
}

// spool keeps bytes of a result. Its file has no name any more.
type spool struct {
	f     *os.File
	taken bool // guarded by lent.mu
}

// spoolMore says whether a result may have that much more, in files.
func (l *lent) spoolMore(p envelope.Payload) error {
	n := int64(len(p.Body))
	for _, s := range p.Segments {
		n += int64(len(s))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bytes += n; l.bytes > maxFileBytes {
		return overLimit()
	}
	return nil
}

// newSpool makes a place for bytes and returns its number.
func (l *lent) newSpool() (uint64, error) {
	const most = 10_000
	l.mu.Lock()
	n := len(l.objs)
	l.mu.Unlock()
	if n >= most {
		return 0, errdefs.New("E9003", "lend", fmt.Sprintf("a result with more than %d files", most))
	}
	f, err := os.CreateTemp("", "sandbox-result-")
	if err != nil {
		return 0, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return 0, err
	}
	return l.Export(&spool{f: f})
}
