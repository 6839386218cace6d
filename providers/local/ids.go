//go:build linux

package local

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// idLength is the length of a sandbox id; five bits a character.
const idLength = 20

var idAlphabet = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// sandboxID is the id of the sandbox that a request creates. It follows from
// the request's identity, so that making the directory of the sandbox is also
// the check that the request was not carried out before.
func sandboxID(requestID string) string {
	if requestID == "" {
		return randomText(idLength)
	}
	sum := sha256.Sum256([]byte("sandbox\x00" + requestID))
	return idAlphabet.EncodeToString(sum[:])[:idLength]
}

// randomText is n lower-case letters and digits that cannot be guessed.
func randomText(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return idAlphabet.EncodeToString(b)[:n]
}

// checkID refuses what cannot be an id of this provider before it becomes part
// of a path. The code is that of an unknown sandbox: an id of another provider
// has another form.
func checkID(op, id string) error {
	ok := len(id) == idLength
	for i := 0; ok && i < len(id); i++ {
		ok = id[i] >= 'a' && id[i] <= 'z' || id[i] >= '0' && id[i] <= '9'
	}
	if ok {
		return nil
	}
	if len(id) > 64 {
		id = id[:64] + "…"
	}
	return &errdefs.Error{Code: "E2020", Op: op,
		Message: fmt.Sprintf("no sandbox %q: ids of provider local are %d lower-case letters and digits", id, idLength)}
}

// blocks are those that creations of this process have chosen and not leased yet.
type blocks struct {
	mu     sync.Mutex
	chosen map[int]bool
}

// choose returns a block of user ids that nobody seems to have, the one that
// leaseBlock would try first. It is the caller's, among those in this process, until
// forget.
func (bl *blocks) choose(dir *folder) (int, error) {
	bl.mu.Lock()
	defer bl.mu.Unlock()
	names, err := dir.names()
	if err != nil {
		return -1, err
	}
	if bl.chosen == nil {
		bl.chosen = map[int]bool{}
	}
	first := firstBlock(dir)
	for i := range blockCount {
		n := (first + i) % blockCount
		if !bl.chosen[n] && !slices.Contains(names, leaseName(n)) {
			bl.chosen[n] = true
			return n, nil
		}
	}
	return first, nil // the lease finds out
}

func (bl *blocks) forget(n int) {
	bl.mu.Lock()
	defer bl.mu.Unlock()
	delete(bl.chosen, n)
}

// leaseBlock takes a free block of user ids, so that processes of two sandboxes
// never share a user. It returns the number of the block and the locked file
// that stands for it: whoever holds the file open, holds the block.
func leaseBlock(dir *folder) (int, *os.File, error) {
	names, err := dir.names()
	if err != nil {
		return 0, nil, err
	}
	used := map[int]bool{}
	for _, n := range names {
		if i, ok := leaseNumber(n); ok {
			used[i] = true
		}
	}
	// Two state directories know nothing of each other; starting at different
	// places makes it unlikely that they hand out the same ids.
	first := firstBlock(dir)
	var locked []int
	for i := range blockCount {
		n := (first + i) % blockCount
		if used[n] {
			locked = append(locked, n)
			continue
		}
		if f, err := dir.newLock(leaseName(n)); err == nil {
			return n, f, nil
		} else if !errors.Is(err, errBusy) {
			return 0, nil, err
		}
		locked = append(locked, n)
	}
	for _, n := range locked {
		if f, err := dir.tryLock(leaseName(n)); err == nil {
			return n, f, nil
		} else if !errors.Is(err, errBusy) {
			return 0, nil, err
		}
	}
	return 0, nil, &errdefs.Error{Code: "E2002", Op: "create sandbox",
		Message:    fmt.Sprintf("all %d blocks of user ids are in use", blockCount),
		Suggestion: "kill sandboxes that are no longer needed"}
}

// firstBlock is where the search for a free block starts.
func firstBlock(dir *folder) int {
	st, err := dir.stat()
	if err != nil {
		return 0
	}
	h := fnv.New32a()
	fmt.Fprint(h, st.Dev, st.Ino)
	return int(h.Sum32() % blockCount)
}

func leaseName(n int) string { return strconv.Itoa(n) + ".lock" }

func leaseNumber(name string) (int, bool) {
	s, ok := strings.CutSuffix(name, ".lock")
	n, err := strconv.Atoi(s)
	return n, ok && err == nil && leaseName(n) == name
}

// collectLeases removes the lease files that nobody holds.
func collectLeases(dir *folder, removed *removals) error {
	names, err := dir.names()
	slices.Sort(names)
	for _, n := range names {
		if i, ok := leaseNumber(n); ok {
			free, lerr := removeLease(dir, i)
			if free {
				removed.note(providers.RemovedIDs, n)
			}
			err = errors.Join(err, lerr)
		}
	}
	return err
}

// releaseLease removes the lease file of block n unless somebody holds it.
func releaseLease(dir *folder, n int) error {
	_, err := removeLease(dir, n)
	return err
}

// removeLease is releaseLease, and reports whether there was a file to remove.
func removeLease(dir *folder, n int) (bool, error) {
	f, err := dir.lockThere(leaseName(n)) // not made: there may be no room
	if errors.Is(err, errBusy) || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = dir.remove(leaseName(n))
	return err == nil, err
}
