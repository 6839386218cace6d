//go:build linux

package local

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// clientLeaf is the group into which this process moves itself when the group
// that was delegated to it holds nothing else: groups with processes of their own
// cannot limit others. It goes with the group it is in, which whoever delegated
// removes.
const clientLeaf = "sandbox-go-client"

// delegatedTo reports whether a group of the unified tree was given to us, so
// that we may switch on controllers in it: it belongs to our user, or systemd has
// marked it (systemd.resource-control(5), Delegate=).
func delegatedTo(dir string) bool {
	var st unix.Stat_t
	if unix.Stat(dir, &st) == nil && st.Uid != 0 && int(st.Uid) == os.Geteuid() {
		return true
	}
	return markedDelegate(dir)
}

func markedDelegate(dir string) bool {
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		b := make([]byte, 8)
		if n, err := unix.Getxattr(dir, name, b); err == nil && string(b[:n]) == "1" {
			return true
		}
	}
	return false
}

// stepAside moves this process from dir, where it must be alone, to a group below.
func stepAside(dir string) error {
	b, err := readProc(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return err
	}
	if own := strconv.Itoa(os.Getpid()); string(bytes.TrimSpace(b)) != own {
		return unix.EBUSY
	}
	leaf := filepath.Join(dir, clientLeaf)
	if err := os.Mkdir(leaf, 0o755); err != nil && !os.IsExist(err) {
		return err
	}
	if err := writeCgroup(leaf, "cgroup.procs", strconv.Itoa(os.Getpid())); err != nil {
		_ = unix.Rmdir(leaf) // it was empty
		return err
	}
	return nil
}

// A Delegator asks the system for a control group in which this process may make
// others. When it returns nil, this process is in it.
type Delegator func(ctx context.Context) error

// delegator is what was registered; its answer is kept, because what it does
// concerns the process and not one provider.
var delegator struct {
	mu   sync.Mutex
	ask  Delegator
	done bool
	err  error
}

// RegisterDelegator makes d the way to get control groups where the ones that
// are there cannot limit memory. It is asked at most once. It is meant for init
// functions: package providers/local/systemd has one.
func RegisterDelegator(d Delegator) {
	delegator.mu.Lock()
	defer delegator.mu.Unlock()
	delegator.ask, delegator.done, delegator.err = d, false, nil
}

// delegatorTimeout bounds the wait for the service manager.
const delegatorTimeout = 5 * time.Second

// errNoDelegator says that nobody can be asked.
var errNoDelegator = errors.New("nobody to ask")

func askDelegator() error {
	delegator.mu.Lock()
	defer delegator.mu.Unlock()
	if delegator.ask == nil {
		return errNoDelegator
	}
	if !delegator.done {
		ctx, cancel := context.WithTimeout(context.Background(), delegatorTimeout)
		defer cancel()
		delegator.err, delegator.done = delegator.ask(ctx), true
	}
	return delegator.err
}

// findGroups is findCgroups and, where that finds no way to limit memory, once
// more after the delegator was asked.
func findGroups(parent, root string) *cgroupHost {
	h := findCgroups(parent, root)
	if h.mechanism(limitMemory) != "" || parent != "" {
		return h
	}
	err := askDelegator()
	switch {
	case err == nil:
		return findCgroups(parent, root)
	case errors.Is(err, errNoDelegator):
		return h
	}
	for limit, why := range h.why {
		h.why[limit] = why + "; " + err.Error()
	}
	return h
}
