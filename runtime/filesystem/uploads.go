//go:build linux

package filesystem

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
	"sync"
)

// uploadPrefix begins the names of files that take up an upload until it is
// complete.
const uploadPrefix = ".upload-"

// rememberedUploads is how many names of finished uploads are known: a watch
// reads its events a little later.
const rememberedUploads = 4096

// uploads knows the names of temporary files, so that watches report what an
// upload does and not how. Only names that were given out are hidden. It is safe
// for concurrent use.
type uploads struct {
	mu    sync.Mutex
	names map[string]struct{} // guarded by mu
	old   []string            // guarded by mu; finished, a ring once it is full
	next  int                 // guarded by mu; the oldest of a full ring
}

func newUploads() *uploads { return &uploads{names: map[string]struct{}{}} }

// begin returns a name that nobody can guess.
func (u *uploads) begin() string {
	var b [12]byte
	rand.Read(b[:]) // never fails
	name := uploadPrefix + hex.EncodeToString(b[:])
	u.mu.Lock()
	defer u.mu.Unlock()
	u.names[name] = struct{}{}
	return name
}

// end says that no file has this name any more.
func (u *uploads) end(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.old) < rememberedUploads {
		u.old = append(u.old, name)
		return
	}
	delete(u.names, u.old[u.next])
	u.old[u.next] = name
	u.next = (u.next + 1) % rememberedUploads
}

// known reports whether name is that of an upload.
func (u *uploads) known(name string) bool {
	if !strings.HasPrefix(name, uploadPrefix) {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	_, ok := u.names[name]
	return ok
}
