//go:build linux

package filesystem

import (
	"crypto/rand"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

const (
	// maxWatchers bounds the watches of a sandbox, streams and polled ones. The
	// kernel allows 128 for all programs of a user (fs.inotify.max_user_instances).
	maxWatchers = 64
	// pollTimeout is how long a polled watch is kept without a call.
	pollTimeout = time.Hour
)

// watchers is all watches of a server.
type watchers struct {
	uploads     *uploads
	guard       guard
	bytes, dirs atomic.Int64 // of all watches
	running     sync.WaitGroup

	pollTimeout time.Duration // pollTimeout, but for tests

	mu     sync.Mutex
	open   map[*watcher]struct{}     // guarded by mu
	coming int                       // guarded by mu; watches being set up
	polled map[string]*polledWatcher // guarded by mu
	closed bool                      // guarded by mu
}

// polledWatcher is a watch whose client asks for events.
type polledWatcher struct {
	*watcher
	entries bool // tell what is there now
	expiry  *time.Timer
}

func newWatchers(up *uploads, g guard) *watchers {
	return &watchers{uploads: up, guard: g, pollTimeout: pollTimeout, open: map[*watcher]struct{}{}, polled: map[string]*polledWatcher{}}
}

// start begins a watch. The caller has taken the rights of u and calls end
// after it.
func (r *watchers) start(u *account.User, p string, o watchOptions) (*watcher, error) {
	r.mu.Lock()
	switch {
	case r.closed:
		r.mu.Unlock()
		return nil, errClosing()
	case len(r.open)+r.coming >= maxWatchers:
		r.mu.Unlock()
		return nil, fault.New(connect.CodeResourceExhausted, "E4000", "more than %d watches at a time", maxWatchers)
	}
	r.coming++
	r.mu.Unlock()
	w, err := newWatcher(u, p, o, r)
	r.mu.Lock()
	r.coming--
	if err == nil {
		r.open[w] = struct{}{}
	}
	closed := r.closed
	r.mu.Unlock()
	if err == nil && closed {
		r.end(w)
		return nil, errClosing()
	}
	return w, err
}

// end ends a watch and frees its place.
func (r *watchers) end(w *watcher) {
	w.stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, w)
}

// poll makes w a watch that is asked by the id it returns.
func (r *watchers) poll(w *watcher, entries bool) (id string, err error) {
	id = "w" + strings.ToLower(rand.Text())
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return "", errClosing()
	}
	r.polled[id] = &polledWatcher{watcher: w, entries: entries, expiry: time.AfterFunc(r.pollTimeout, func() { r.remove(id) })}
	return id, nil
}

// find returns the watch of id, which stays for another while.
func (r *watchers) find(id string) (*polledWatcher, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.polled[id]
	if w == nil {
		return nil, unknownWatcher(id)
	}
	w.expiry.Reset(r.pollTimeout)
	return w, nil
}

// remove ends the watch of id.
func (r *watchers) remove(id string) error {
	r.mu.Lock()
	w := r.polled[id]
	delete(r.polled, id)
	r.mu.Unlock()
	if w == nil {
		return unknownWatcher(id)
	}
	w.expiry.Stop()
	r.end(w.watcher)
	return nil
}

// close ends every watch and waits for the end.
func (r *watchers) close() {
	r.mu.Lock()
	r.closed = true
	var all []*watcher
	for w := range r.open {
		all = append(all, w)
	}
	for id, w := range r.polled {
		w.expiry.Stop()
		delete(r.polled, id)
	}
	r.mu.Unlock()
	for _, w := range all {
		w.queue.fail(errClosing())
		r.end(w)
	}
	r.running.Wait()
}

func errClosing() error { return fault.New(connect.CodeUnavailable, "", "server is shutting down") }

func unknownWatcher(id string) error {
	return fault.New(connect.CodeNotFound, "E4001", "watcher with id %s not found", id)
}
