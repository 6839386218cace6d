package sandboxfn

import (
	"bytes"
	"cmp"
	"container/list"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// contents is what this worker has received of files, by what is in it: content
// that it has is not sent again. Its files have no names, so that nothing is
// left behind when the worker is killed.
var contents = contentCache{most: 256, bytes: 64 << 20}

// contentCache keeps files up to a number and a size, those used last.
type contentCache struct {
	most  int
	bytes int64 // of all together; a larger file is not kept

	mu   sync.Mutex
	m    map[[sha256.Size]byte]*list.Element // guarded by mu
	used list.List                           // of *content, the one used last in front; guarded by mu
	size int64                               // guarded by mu
}

type content struct {
	sum  [sha256.Size]byte
	size int64
	f    *os.File
	refs int // of readers, and of the cache; guarded by contentCache.mu
}

// get returns a reader of the content, and what ends it; nil when it is not
// there.
func (c *contentCache) get(sum [sha256.Size]byte) (io.Reader, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.m[sum]
	if e == nil {
		return nil, nil
	}
	c.used.MoveToFront(e)
	x := e.Value.(*content)
	x.refs++
	return io.NewSectionReader(x.f, 0, x.size), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.dropLocked(x)
	}
}

func (c *contentCache) dropLocked(x *content) {
	if x.refs--; x.refs == 0 {
		x.f.Close()
	}
}

// add keeps a file without a name, which is the cache's from then on.
func (c *contentCache) add(sum [sha256.Size]byte, size int64, f *os.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m[sum] != nil {
		f.Close()
		return
	}
	if c.m == nil {
		c.m = map[[sha256.Size]byte]*list.Element{}
	}
	c.m[sum] = c.used.PushFront(&content{sum, size, f, 1})
	c.size += size
	for c.size > c.bytes || c.used.Len() > c.most {
		x := c.used.Remove(c.used.Back()).(*content)
		delete(c.m, x.sum)
		c.size -= x.size
		c.dropLocked(x)
	}
}

// fetch writes content of the given size and hash to w: from the cache, or else
// from r, of which it makes sure that it is that content.
func (c *contentCache) fetch(w io.Writer, r io.Reader, size int64, sum [sha256.Size]byte) error {
	if have, done := c.get(sum); have != nil {
		defer done()
		_, err := io.Copy(&urgent{w, c.empty}, have)
		return err
	}
	var keep *os.File
	if size <= min(c.bytes, freeBytes(scratch())/4) { // the rest is the function's
		f, err := os.CreateTemp(scratch(), "sandbox-content-")
		if err == nil {
			keep = f
			os.Remove(f.Name())
		} // without a place for it, it is not kept
	}
	h := sha256.New()
	copied := &spare{f: keep}
	ws := []io.Writer{&urgent{w: w, makeRoom: func() { copied.drop(); c.empty() }}, h, copied}
	n, err := io.CopyBuffer(io.MultiWriter(ws...), struct{ io.Reader }{io.LimitReader(r, size+1)}, make([]byte, 128<<10))
	if err == nil && (n != size || !bytes.Equal(h.Sum(nil), sum[:])) {
		err = errChanged
	}
	switch {
	case keep == nil:
	case err != nil:
		copied.drop()
	case copied.f == nil: // dropped
	default:
		c.add(sum, size, keep)
	}
	return err
}

// empty drops everything that nobody reads.
func (c *contentCache) empty() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.used.Len() > 0 {
		c.dropLocked(c.used.Remove(c.used.Back()).(*content))
	}
	clear(c.m)
	c.size = 0
}

// scratch is where files of calls go.
func scratch() string { return cmp.Or(worker.Scratch(), os.TempDir()) }

// spare writes a copy as long as there is room for it.
type spare struct{ f *os.File } // nil: there is no copy

func (s *spare) Write(p []byte) (int, error) {
	if s.f != nil {
		if _, err := s.f.Write(p); err != nil {
			s.drop()
		}
	}
	return len(p), nil
}

func (s *spare) drop() {
	if s.f != nil {
		s.f.Close()
		s.f = nil
	}
}

// urgent writes what must have room: what is only kept makes it.
type urgent struct {
	w        io.Writer
	makeRoom func()
}

func (u *urgent) Write(p []byte) (int, error) {
	n, err := u.w.Write(p)
	if errors.Is(err, syscall.ENOSPC) {
		u.makeRoom()
		var more int
		more, err = u.w.Write(p[n:])
		n += more
	}
	return n, err
}
