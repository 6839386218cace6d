//go:build linux

package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// Files of one sandbox in boxes/<id>.
const (
	fileLock    = "lock"        // held by init for life: free means dead
	fileConfig  = "config.json" // as created, no secrets; written before anything else exists
	fileSpare   = "spare.json"  // in the place of config.json, of a sandbox that waits in a pool
	fileState   = "state.json"  // written when the sandbox is ready
	fileRuntime = "rt.sock"
	fileControl = "ctl.sock"
	fileToken   = "token"
	fileEnd     = "end" // first line: why it ended
	fileLog     = "log" // what init says
)

// maxSaved bounds a JSON file of a sandbox, in bytes.
const maxSaved = 1 << 20

// entry is the directory of one sandbox.
type entry struct {
	id  string
	dir *folder
}

// savedConfig is config.json: what was asked for, and everything outside the
// directory that has to be removed with it.
type savedConfig struct {
	ID        string              `json:"id"`
	Request   string              `json:"request,omitempty"` // digest of the request, to recognise a repetition
	Template  string              `json:"template"`          // or the reference of its image
	Engine    string              `json:"engine,omitempty"`
	Root      savedRoot           `json:"root,omitzero"`
	CreatedAt time.Time           `json:"created_at"`
	Metadata  map[string]string   `json:"metadata,omitempty"`
	Resources providers.Resources `json:"resources"`
	Detached  bool                `json:"detached"`
	User      string              `json:"user"`
	Cgroups   []string            `json:"cgroups,omitempty"`  // in the order of removal
	Block     int                 `json:"block"`              // leased block of ids; -1: none
	Network   *savedNetwork       `json:"network,omitempty"`  // one that is kept
	Compiled  *model.Template     `json:"compiled,omitempty"` // what its template says
	fileSet                       // that it started with
}

// savedState is state.json: where init is and what it is.
type savedState struct {
	initID
	Deadline  int64             `json:"deadline"` // CLOCK_BOOTTIME, ns; a hint: init decides
	Report    providers.Report  `json:"report"`
	Artifacts map[string]string `json:"artifacts,omitempty"`
}

// newEntry makes the directory of a sandbox and returns it with its lock held.
// errBusy means that a sandbox of this id lives or is being made.
func (t *tree) newEntry(id string) (*entry, *os.File, error) {
	made := false
	for range 200 {
		err := t.boxes.mkdir(id)
		if err == unix.EEXIST {
			err := t.collectID(id)
			if errors.Is(err, errAsleep) {
				return nil, nil, errBusy
			}
			if made && errors.Is(err, errBusy) { // the collector that took ours
				time.Sleep(time.Millisecond)
				continue
			}
			if err != nil {
				return nil, nil, err
			}
			continue
		}
		made = err == nil
		if err != nil {
			return nil, nil, &fs.PathError{Op: "mkdir", Path: t.path + "/boxes/" + id, Err: err}
		}
		// A collector that comes now takes the directory for one without an
		// owner; then making the lock fails, and we start over.
		dir, err := t.boxes.sub(id)
		if err == nil {
			var lock *os.File
			if lock, err = dir.newLock(fileLock); err == nil {
				return &entry{id, dir}, lock, nil
			}
			dir.close()
		}
		if !errors.Is(err, errBusy) && !errors.Is(err, fs.ErrNotExist) {
			_ = unix.Unlinkat(t.boxes.fd(), id, unix.AT_REMOVEDIR) // otherwise a collector does
			return nil, nil, err
		}
		time.Sleep(time.Millisecond)
	}
	return nil, nil, errBusy
}

// openEntry opens the directory of a sandbox; fs.ErrNotExist when there is none.
func (t *tree) openEntry(id string) (*entry, error) {
	dir, err := t.boxes.sub(id)
	if err != nil {
		return nil, err
	}
	return &entry{id, dir}, nil
}

func (e *entry) close() { e.dir.close() }

func (e *entry) save(name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return e.dir.write(name, b)
}

// draft is save in two steps: done, which it returns, makes the file appear. With
// r, unless nil, the file exists already.
func (e *entry) draft(name string, v any, r *reserved) (done func() error, err error) {
	b, err := json.Marshal(v)
	if err == nil && r == nil {
		r, err = e.dir.reserve(name)
	}
	if err == nil {
		err = r.fill(b)
	}
	if err != nil {
		return nil, err
	}
	return r.place, nil
}

func (e *entry) load(name string, v any) error {
	b, err := e.dir.read(name, maxSaved)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s of sandbox %s: %w", name, e.id, err)
	}
	return nil
}

func (e *entry) token() (providers.Secret, error) {
	b, err := e.dir.read(fileToken, 1<<10)
	return providers.Secret(b), err
}

// listen binds a unix socket in e. Only its owner can reach it: the directory
// and all above up to the state root have mode 0700.
func (e *entry) listen(name string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: e.dir.address(name)})
	if err == nil {
		err = unix.Listen(fd, unix.SOMAXCONN)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("listen on %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// removeIdle removes what nobody needs of a sandbox that is being killed, while the
// kernel takes it down. What fails is tried again when it is dead.
func (e *entry) removeIdle() {
	for _, name := range []string{fileRuntime, fileControl, fileToken, fileLog} {
		_ = e.dir.remove(name)
	}
}

// Why a sandbox ended, as written in the file end.
const (
	endExpired    = "expired"
	endKilled     = "killed"
	endHibernated = "hibernated"
	endClient     = "client" // the client of an attached sandbox is gone
	endMemory     = "memory" // of a guest, whose kernel took more than there is for it
)

// noteEnd writes why the sandbox is being ended. The first note counts.
func (e *entry) noteEnd(why string) error {
	f, err := e.dir.open(fileEnd, unix.O_WRONLY|unix.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(why + "\n")
	return err
}

// endNote returns the first note, or "" when init ended without one.
func (e *entry) endNote() string {
	b, err := e.dir.read(fileEnd, 4<<10)
	if err != nil {
		return ""
	}
	why, _, _ := strings.Cut(string(b), "\n")
	return why
}
