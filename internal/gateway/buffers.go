package gateway

import (
	"crypto/sha256"
	"crypto/subtle"
	"sync"
)

// buffers lends the buffers that bodies are copied through.
type buffers struct{}

var copyBuffers = sync.Pool{New: func() any { b := make([]byte, copyBuffer); return &b }}

// Get returns a buffer.
func (buffers) Get() []byte { return *copyBuffers.Get().(*[]byte) }

// Put takes one back.
func (buffers) Put(b []byte) { copyBuffers.Put(&b) }

// sameSecret compares in a time that depends on neither text.
func sameSecret(got, want string) bool {
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}
