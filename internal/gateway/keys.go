package gateway

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const (
	keysFile    = "keys.json"
	keysLock    = "keys.lock"
	maxKeys     = 10_000
	maxKeyName  = 64
	keyPrefix   = "e2b_" // SDKs up to 2.45 refuse a key of another form
	keyHexBytes = 20
)

// Key is one API key. What a key created belongs to it; no key sees the
// sandboxes of another.
type Key struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"createdAt"`

	// Secret is the key itself. Only Create sets it; it is stored nowhere.
	Secret string `json:"-"`
}

// savedKey is a key as it lies on disk.
type savedKey struct {
	Key
	Hash string `json:"sha256"` // of the secret, hex
}

// Keys are the API keys in a directory. Several processes may use it at once:
// what one creates or revokes holds in the others from their next look on. It
// is safe for concurrent use.
type Keys struct {
	dir string

	mu    sync.Mutex
	seen  fileMark   // of the file that list was read from
	list  []savedKey // guarded by mu
	sums  [][]byte   // of list, decoded
	ready bool       // the file was read
}

// fileMark tells one version of a file from the next, which is another file.
type fileMark struct {
	inode uint64
	mtime int64
}

// OpenKeys opens the keys in dir, which is made if it is missing. An unreadable
// or malformed file is E8007, one that others can read E1007.
func OpenKeys(dir string) (*Keys, error) {
	if err := makePrivate(dir); err != nil {
		return nil, err
	}
	k := &Keys{dir: dir}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.refreshLocked(); err != nil {
		return nil, err
	}
	return k, nil
}

// Create makes a key. Its Secret is shown this once. The name is for people:
// up to 64 printable bytes, unique among the keys that were not revoked.
func (k *Keys) Create(name string) (Key, error) {
	const op = "create key"
	name = strings.TrimSpace(name)
	if name == "" || len(name) > maxKeyName || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return Key{}, &errdefs.Error{Code: "E8007", Op: op, Message: fmt.Sprintf("a name has 1 to %d printable bytes", maxKeyName)}
	}
	var secret [keyHexBytes]byte
	var id [8]byte
	rand.Read(secret[:])
	rand.Read(id[:])
	key := Key{ID: hex.EncodeToString(id[:]), Name: name, CreatedAt: time.Now().UTC().Truncate(time.Second),
		Secret: keyPrefix + hex.EncodeToString(secret[:])}
	sum := sha256.Sum256([]byte(key.Secret))
	err := k.change(func(list []savedKey) ([]savedKey, error) {
		if len(list) >= maxKeys {
			return nil, &errdefs.Error{Code: "E2002", Op: op, Message: fmt.Sprintf("there are %d keys", len(list)), Suggestion: "revoke keys that are not used"}
		}
		if slices.ContainsFunc(list, func(s savedKey) bool { return s.Name == name }) {
			return nil, &errdefs.Error{Code: "E8007", Op: op, Message: fmt.Sprintf("there is a key named %q already", name), Suggestion: "choose another name, or revoke that key"}
		}
		return append(list, savedKey{Key: key, Hash: hex.EncodeToString(sum[:])}), nil
	})
	if err != nil {
		return Key{}, err
	}
	return key, nil
}

// List returns the keys that were not revoked, oldest first, without secrets.
func (k *Keys) List() ([]Key, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.refreshLocked(); err != nil {
		return nil, err
	}
	keys := make([]Key, len(k.list))
	for i, s := range k.list {
		keys[i] = s.Key
	}
	return keys, nil
}

// Revoke ends a key, named by its id or name. Its sandboxes live on to their
// end; nobody can reach them through the control plane any more. A key that is
// not there is E1008.
func (k *Keys) Revoke(idOrName string) error {
	return k.change(func(list []savedKey) ([]savedKey, error) {
		n := len(list)
		list = slices.DeleteFunc(list, func(s savedKey) bool { return s.ID == idOrName || s.Name == idOrName })
		if len(list) == n {
			return nil, &errdefs.Error{Code: "E1008", Op: "revoke key", Message: fmt.Sprintf("no key has the id or name %q", idOrName), Suggestion: "list the keys"}
		}
		return list, nil
	})
}

// owner returns the id of the key with this secret. It compares with all of
// them, whichever fits, so that its duration tells nothing.
func (k *Keys) owner(secret string) (string, bool, error) {
	sum := sha256.Sum256([]byte(secret))
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.refreshLocked(); err != nil {
		return "", false, err
	}
	found := -1
	for i, s := range k.sums {
		if subtle.ConstantTimeCompare(sum[:], s) == 1 {
			found = i
		}
	}
	if found < 0 {
		return "", false, nil
	}
	return k.list[found].ID, true, nil
}

// refreshLocked reads the file again when it is not the one that was read.
func (k *Keys) refreshLocked() error {
	const op = "read keys"
	path := filepath.Join(k.dir, keysFile)
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	if errors.Is(err, fs.ErrNotExist) {
		k.list, k.sums, k.seen, k.ready = nil, nil, fileMark{}, true
		return nil
	}
	if err != nil {
		return &errdefs.Error{Code: "E8007", Op: op, Message: path, Err: err}
	}
	mark := fileMark{inode: st.Ino, mtime: st.Mtim.Nano()}
	if k.ready && mark == k.seen {
		return nil
	}
	if st.Mode&0o077 != 0 {
		return &errdefs.Error{Code: "E1007", Op: op, Message: path + " can be read or written by others", Suggestion: "chmod 600 " + path}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return &errdefs.Error{Code: "E8007", Op: op, Message: path, Err: err}
	}
	var list []savedKey
	if err := json.Unmarshal(b, &list); err != nil {
		return &errdefs.Error{Code: "E8007", Op: op, Message: path + " is malformed", Err: err}
	}
	sums := make([][]byte, len(list))
	for i, s := range list {
		if sums[i], err = hex.DecodeString(s.Hash); err != nil || len(sums[i]) != sha256.Size || s.ID == "" {
			return &errdefs.Error{Code: "E8007", Op: op, Message: fmt.Sprintf("%s is malformed: entry %d", path, i+1)}
		}
	}
	k.list, k.sums, k.seen, k.ready = list, sums, mark, true
	return nil
}

// change rewrites the file under a lock between processes.
func (k *Keys) change(edit func([]savedKey) ([]savedKey, error)) error {
	const op = "change keys"
	lock, err := os.OpenFile(filepath.Join(k.dir, keysLock), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &errdefs.Error{Code: "E8007", Op: op, Message: k.dir, Err: err}
	}
	defer lock.Close() // and with it the lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return &errdefs.Error{Code: "E8007", Op: op, Message: k.dir, Err: err}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.refreshLocked(); err != nil {
		return err
	}
	list, err := edit(slices.Clone(k.list))
	if err != nil {
		return err
	}
	b, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return err
	}
	if err := writeFile(k.dir, keysFile, append(b, '\n'), syncDisk); err != nil {
		return &errdefs.Error{Code: "E8007", Op: op, Message: k.dir, Err: err}
	}
	return k.refreshLocked()
}
