package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const (
	stateLock   = "lock"
	identFile   = "gateway.json"
	boxesDir    = "boxes"
	maxRecord   = 1 << 20 // bytes of one record
	tempPattern = ".new-"
)

// durability says whether a written file must survive a fall of the machine.
type durability int

const (
	survivesProcess durability = iota // sandboxes do not survive the machine either
	syncDisk
)

// makePrivate makes a directory that only its owner can use, or checks that
// one is.
func makePrivate(dir string) error {
	const op = "open state directory"
	if !filepath.IsAbs(dir) {
		return &errdefs.Error{Code: "E8007", Op: op, Message: fmt.Sprintf("%q is not an absolute path", dir)}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return &errdefs.Error{Code: "E8007", Op: op, Message: dir, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return &errdefs.Error{Code: "E8007", Op: op, Message: dir, Err: err}
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return &errdefs.Error{Code: "E1007", Op: op, Message: dir + " belongs to somebody else or can be used by others",
			Suggestion: "chmod 700 " + dir + ", or choose another state directory"}
	}
	return nil
}

// writeFile replaces a file in dir in one step. Only its owner can read it.
func writeFile(dir, name string, content []byte, d durability) error {
	f, err := os.CreateTemp(dir, tempPattern)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil && d == syncDisk {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		os.Remove(f.Name())
		return err
	}
	if d == syncDisk {
		return syncDirectory(dir)
	}
	return nil
}

func syncDirectory(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// store is the state directory of one gateway:
//
//	lock          held while a gateway runs
//	gateway.json  which gateway this is; sandboxes carry the name
//	keys.json     hashes of the API keys
//	boxes/<id>    one record for each sandbox
type store struct {
	dir   string
	boxes string
	lock  *os.File
	ident string // marks our sandboxes at the provider
}

// openStore takes the state directory for this process. A second gateway on it
// is refused.
func openStore(dir string) (*store, error) {
	const op = "open state directory"
	if err := makePrivate(dir); err != nil {
		return nil, err
	}
	s := &store{dir: dir, boxes: filepath.Join(dir, boxesDir)}
	if err := makePrivate(s.boxes); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, stateLock), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &errdefs.Error{Code: "E8007", Op: op, Message: dir, Err: err}
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, &errdefs.Error{Code: "E8007", Op: op, Message: "another gateway uses " + dir,
				Suggestion: "stop it, or give this one a state directory of its own"}
		}
		return nil, &errdefs.Error{Code: "E8007", Op: op, Message: dir, Err: err}
	}
	s.lock = lock
	if err := s.identify(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *store) close() { s.lock.Close() }

// identify reads the name of this gateway, or gives it one.
func (s *store) identify() error {
	type file struct {
		ID string `json:"id"`
	}
	var f file
	b, err := os.ReadFile(filepath.Join(s.dir, identFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.ID = randomHex(8)
		if b, err = json.Marshal(f); err == nil {
			err = writeFile(s.dir, identFile, append(b, '\n'), syncDisk)
		}
	case err == nil:
		if err = json.Unmarshal(b, &f); err == nil && f.ID == "" {
			err = errors.New("no id")
		}
	}
	if err != nil {
		return &errdefs.Error{Code: "E8007", Op: "open state directory", Message: filepath.Join(s.dir, identFile), Err: err}
	}
	s.ident = f.ID
	return nil
}

// save writes the record of one sandbox.
func (s *store) save(r *record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if len(b) > maxRecord {
		return fmt.Errorf("record of %d bytes; at most %d", len(b), maxRecord)
	}
	return writeFile(s.boxes, r.ID, b, survivesProcess)
}

// remove forgets a sandbox. One that is not there is no error.
func (s *store) remove(id string) error {
	err := os.Remove(filepath.Join(s.boxes, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// load reads all records and removes what an interrupted write left. A record
// that cannot be read is reported and left alone.
func (s *store) load(bad func(name string, err error)) ([]*record, error) {
	names, err := os.ReadDir(s.boxes)
	if err != nil {
		return nil, err
	}
	var all []*record
	for _, n := range names {
		if strings.HasPrefix(n.Name(), tempPattern) {
			os.Remove(filepath.Join(s.boxes, n.Name()))
			continue
		}
		r, err := s.read(n.Name())
		if err != nil {
			bad(n.Name(), err)
			continue
		}
		all = append(all, r)
	}
	return all, nil
}

func (s *store) read(name string) (*record, error) {
	f, err := os.Open(filepath.Join(s.boxes, name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, err
	}
	if r.ID != name || !validID(r.ID) || r.Owner == "" {
		return nil, errors.New("not the record of this sandbox")
	}
	return &r, nil
}
