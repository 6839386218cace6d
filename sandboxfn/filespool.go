package sandboxfn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"sync"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// maxSpools is how many files and directories the result of a call may hold.
const maxSpools = 10_000

// spoolFile keeps the files of a result until they are used, one behind the
// other in a file without a name: they need one descriptor, however many they
// are, and nothing is left behind when this process is killed.
type spoolFile struct {
	mu   sync.Mutex // held while it is written
	f    *os.File   // guarded by mu
	last *spool     // guarded by mu; the one that can be written
	n    int        // guarded by mu; spools so far
	end  int64      // guarded by mu; where the last one ends
	refs int        // guarded by mu; of the call, and of the files that are in use
}

// spool is a place for the bytes of one file.
type spool struct {
	in    *spoolFile
	at    int64
	size  int64 // guarded by in.mu
	taken bool  // guarded by lent.mu
}

func newSpoolFile() (*spoolFile, error) {
	f, err := os.CreateTemp("", "sandbox-result-")
	if err != nil {
		return nil, fileError("temporary file", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, fileError("temporary file", err)
	}
	return &spoolFile{f: f, refs: 1}, nil
}

// add makes another place. The one before can't be written any more.
func (s *spoolFile) add() (*spool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n++; s.n > maxSpools {
		return nil, errdefs.New("E9003", "lend", fmt.Sprintf("a result with more than %d files", maxSpools))
	}
	s.last = &spool{in: s, at: s.end}
	return s.last, nil
}

// close ends the call's use of it.
func (s *spoolFile) close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	s.last = nil
	s.mu.Unlock()
	return s.drop()
}

func (s *spoolFile) drop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refs--; s.refs == 0 {
		return s.f.Close()
	}
	return nil
}

// Write implements [io.Writer].
func (p *spool) Write(b []byte) (int, error) {
	s := p.in
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.last != p:
		return 0, errdefs.New("E9005", "lend", "a file of the result is written after the next one has begun, or after the call")
	case int64(len(b)) > maxFileBytes-s.end:
		return 0, overLimit()
	}
	n, err := s.f.WriteAt(b, s.end)
	s.end += int64(n)
	p.size += int64(n)
	return n, noSpace(err)
}

// take returns what was written.
func (p *spool) take() *spooled {
	s := p.in
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == p {
		s.last = nil
	}
	s.refs++
	return &spooled{SectionReader: io.NewSectionReader(s.f, p.at, p.size), in: s}
}

// spooled is the content of a file of a result. Package os closes the file that
// it is in when nobody uses any of it.
type spooled struct {
	*io.SectionReader
	in   *spoolFile
	once sync.Once
}

// Close implements [io.Closer].
func (s *spooled) Close() (err error) {
	s.once.Do(func() { err = s.in.drop() })
	return err
}

// holding remembers which types have files in them.
var holding sync.Map // reflect.Type → bool

// holdsFiles reports whether values of type t may hold a [File] or a [Dir]. Of
// an error it is not expected.
func holdsFiles(t reflect.Type) bool {
	if have, ok := holding.Load(t); ok {
		return have.(bool)
	}
	has := searchFiles(t, map[reflect.Type]bool{})
	holding.Store(t, has)
	return has
}

func searchFiles(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	if t == reflect.TypeFor[File]() || t == reflect.TypeFor[Dir]() {
		return true
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return searchFiles(t.Elem(), seen)
	case reflect.Map:
		return searchFiles(t.Key(), seen) || searchFiles(t.Elem(), seen)
	case reflect.Interface:
		return t != reflect.TypeFor[error]() // it may hold anything
	case reflect.Struct:
		for f := range t.Fields() {
			if (f.IsExported() || f.Anonymous) && searchFiles(f.Type, seen) {
				return true
			}
		}
	}
	return false
}

// during reads as long as a call goes on.
type during struct {
	ctx context.Context // nil: there is no call
	r   io.Reader
}

// Read implements [io.Reader].
func (d during) Read(p []byte) (int, error) {
	if d.ctx != nil && d.ctx.Err() != nil {
		return 0, context.Cause(d.ctx)
	}
	return d.r.Read(p)
}

// openDuring opens what is read only as long as a call goes on.
func openDuring(ctx context.Context, open func() (io.ReadCloser, error)) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) {
		r, err := open()
		if err != nil {
			return nil, err
		}
		return struct {
			io.Reader
			io.Closer
		}{during{ctx, r}, r}, nil
	}
}

// begin says which call it is.
func (l *lent) begin(ctx context.Context, fn *function) { l.ctx, l.fn = ctx, fn }

// stopped makes the end of the call's context, where err comes of that, the error
// of the call.
func (l *lent) stopped(err error, doing string) error {
	if err != nil && l.ctx != nil && l.ctx.Err() != nil && errors.Is(err, context.Cause(l.ctx)) {
		return ended(l.ctx, l.fn.name, doing)
	}
	return err
}

// mayReturnFiles tells why the worker may not send files; nil when it may.
func (l *lent) mayReturnFiles() error {
	if l.fn == nil || !holdsFiles(reflect.TypeOf(l.fn.newResult())) {
		return errdefs.New("E9005", "lend", "the worker sends a file, and there is none in the type of the result")
	}
	return nil
}
