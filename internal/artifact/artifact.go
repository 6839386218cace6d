// Package artifact knows the executable of this program as content: its digest,
// its size, what it needs from the system it runs on. A sandbox gets a copy of
// it, which becomes the worker; for sandboxes of another platform it is built
// again.
package artifact

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
)

// Self is the executable of this process, or the same program for another
// platform.
type Self struct {
	Path     string // to open it, also when it has been replaced or removed since
	Name     string // of the file it was started from, for people
	Digest   string // lower-case hex SHA-256 of the content
	Size     int64  // bytes
	Platform string // GOOS/GOARCH
}

// Open opens the executable for reading.
func (s Self) Open() (*os.File, error) { return os.Open(s.Path) }

// Own describes the executable of this process. The digest is taken once; it
// reads the whole file. Own is safe for concurrent use.
func Own() (Self, error) { return own() }

var own = sync.OnceValues(func() (Self, error) {
	name, err := os.Executable()
	if err != nil {
		return Self{}, fmt.Errorf("find own executable: %w", err)
	}
	path := ownPath(name)
	digest, size, err := digestOf(path)
	if err != nil {
		return Self{}, fmt.Errorf("read own executable: %w", err)
	}
	return Self{Path: path, Name: name, Digest: digest, Size: size, Platform: runtime.GOOS + "/" + runtime.GOARCH}, nil
})

func digestOf(path string) (string, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), n, err
}
