package gateway

import (
	"crypto/sha256"
	"crypto/subtle"
	"sync"
)

// buffers lends the buffers that bodies are copied through.
type buffers struct{ pool sync.Pool }

// Large buffers more than double the speed of large bodies where processors are
// busy: each copy may wait for its turn. Streams of events, of which there are
// hundreds at once, do without.
var (
	smallBuffers = newBuffers(32 << 10)
	largeBuffers = newBuffers(256 << 10)
)

func newBuffers(n int) *buffers {
	return &buffers{sync.Pool{New: func() any { b := make([]byte, n); return &b }}}
}

// Get returns a buffer.
func (b *buffers) Get() []byte { return *b.pool.Get().(*[]byte) }

// Put takes one back.
func (b *buffers) Put(buf []byte) { b.pool.Put(&buf) }

// sameSecret compares in a time that depends on neither text.
func sameSecret(got, want string) bool {
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}
