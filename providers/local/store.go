//go:build linux

package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const (
	// storeLock is the file that one process at a time holds while it adds
	// to the store or removes from it.
	storeLock = ".lock"

	// storeTouch is how exactly the last use of an entry is known.
	storeTouch = time.Hour

	// storeKeep is how long an entry is kept after its last use.
	storeKeep = 7 * 24 * time.Hour

	// maxArtifact bounds one executable, in bytes.
	maxArtifact = 4 << 30
)

// store keeps executables by the SHA-256 of their content. Entries are complete
// and verified before they have a name, have mode 0555 and are never changed.
type store struct {
	dir  *folder
	path string // of dir, for binds
	mu   sync.Mutex

	removals *removals // nil: nobody asks what collect removes
}

// add puts an artifact into the store, unless it is there, and returns its path.
func (s *store) add(ctx context.Context, a providers.Artifact) (string, error) {
	if !isDigest(a.Digest) {
		return "", badOption(fmt.Sprintf("artifact digest %q is not a lower-case hex SHA-256", clip(a.Digest)), "")
	}
	path := filepath.Join(s.path, a.Digest)
	if s.has(a.Digest) {
		return path, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.has(a.Digest) { // somebody else was faster
		return path, nil
	}
	lock, err := s.lock(ctx)
	if err != nil {
		return "", artifactError(a, err)
	}
	defer lock.Close()
	if s.has(a.Digest) {
		return path, nil
	}
	if err := s.copy(ctx, a); err != nil {
		return "", artifactError(a, err)
	}
	return path, nil
}

func artifactError(a providers.Artifact, err error) error {
	return stateError("create sandbox", "keep artifact "+a.Path, err)
}

func isDigest(s string) bool {
	if len(s) != hex.EncodedLen(sha256.Size) {
		return false
	}
	return strings.Trim(s, "0123456789abcdef") == ""
}

// has reports whether an entry is there and notes that it is in use.
func (s *store) has(digest string) bool {
	var st unix.Stat_t
	if unix.Fstatat(s.dir.fd(), digest, &st, unix.AT_SYMLINK_NOFOLLOW) != nil ||
		st.Mode != unix.S_IFREG|0o555 || int(st.Uid) != os.Geteuid() {
		return false
	}
	if time.Since(time.Unix(st.Mtim.Unix())) > storeTouch {
		_ = unix.UtimesNanoAt(s.dir.fd(), digest, nil, unix.AT_SYMLINK_NOFOLLOW)
	}
	return true
}

// lock waits for the right to change the store. It goes with the process, so
// nobody waits for the dead.
func (s *store) lock(ctx context.Context) (*os.File, error) {
	for {
		f, err := s.dir.tryLock(storeLock)
		if err == nil || !errors.Is(err, errBusy) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("another process is writing to the store: %w", context.Cause(ctx))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// copy is called with the lock held.
func (s *store) copy(ctx context.Context, a providers.Artifact) (err error) {
	from, err := openRegular(a.Path)
	if err != nil {
		return err
	}
	defer from.Close()
	const tmp = ".new" // what an earlier holder of the lock left is thrown away
	if err := s.dir.remove(tmp); err != nil && err != unix.ENOENT {
		return err
	}
	to, err := s.dir.open(tmp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, to.Close())
		if err != nil {
			s.dir.remove(tmp)
		}
	}()
	sum := sha256.New()
	if err := copyHashed(ctx, to, from, sum); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != a.Digest {
		return &errdefs.Error{Code: "E2011", Op: "create sandbox",
			Message:    "artifact " + a.Path + " has digest " + got + ", not " + a.Digest,
			Suggestion: "was the file replaced while the program runs? start the program again"}
	}
	if err := to.Chmod(0o555); err != nil {
		return err
	}
	// What has a name must have its content, even after a power failure: the
	// name is the only check that later users make.
	if err := to.Sync(); err != nil {
		return err
	}
	return unix.Renameat(s.dir.fd(), tmp, s.dir.fd(), a.Digest)
}

// openRegular opens a file for reading without being held up by a FIFO.
func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	switch {
	case err != nil:
	case !st.Mode().IsRegular():
		err = fmt.Errorf("%s is not a regular file", path)
	case st.Size() > maxArtifact:
		err = fmt.Errorf("%s has %d bytes, more than the %d that are kept", path, st.Size(), int64(maxArtifact))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// copyHashed copies from to to and feeds sum with what to then holds. Where the
// file system can share blocks nothing is copied, and the hash is taken of the
// clone: the source may change at any time.
func copyHashed(ctx context.Context, to, from *os.File, sum hash.Hash) error {
	src, w := io.Reader(from), io.Writer(io.MultiWriter(to, sum))
	if unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) == nil {
		src, w = to, sum
	}
	buf := make([]byte, 256<<10)
	for total := int64(0); ; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n, err := src.Read(buf)
		if total += int64(n); total > maxArtifact {
			return errors.New("the file grows while it is copied")
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return err
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// collectStore removes executables that were not used since before and that no
// sandbox has, asleep or not.
func (p *Provider) collectStore(before time.Time) error {
	used, err := p.tree.usedArtifacts()
	if err != nil {
		p.log.Warn("executables are kept: it is not known which sandboxes have them", "err", err)
		return nil
	}
	return p.store.collect(before, used)
}

// usedArtifacts are the digests of the executables that sandboxes have.
func (t *tree) usedArtifacts() (map[string]bool, error) {
	used := map[string]bool{}
	boxes, err := t.boxes.names()
	if err != nil {
		return nil, err
	}
	for _, id := range boxes {
		e, err := t.openEntry(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var state savedState
		var s savedSleep
		// One that falls asleep has the second before it loses the first.
		err = loadIfThere(e, fileState, &state)
		if err == nil {
			err = loadIfThere(e, fileSleep, &s)
		}
		e.close()
		if err != nil {
			return nil, err
		}
		for d := range state.Artifacts {
			used[d] = true
		}
		for _, a := range s.Request.Artifacts {
			used[a.Digest] = true
		}
	}
	return used, nil
}

// collect removes entries that were not used since before and are not in used,
// and what a killed process left. It does nothing while somebody adds an entry.
func (s *store) collect(before time.Time, used map[string]bool) error {
	all, err := s.dir.allNames()
	if err != nil || len(all) == 0 {
		return err
	}
	lock, err := s.dir.tryLock(storeLock)
	if errors.Is(err, errBusy) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	var errs []error
	for _, n := range all {
		if n == storeLock {
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstatat(s.dir.fd(), n, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			continue
		}
		if isDigest(n) && (used[n] || !time.Unix(st.Mtim.Unix()).Before(before)) {
			continue
		}
		switch err := s.dir.remove(n); {
		case err == nil:
			s.removals.note(providers.RemovedExecutable, n)
		case !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
