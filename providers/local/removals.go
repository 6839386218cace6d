//go:build linux

package local

import (
	"slices"
	"sync"

	"github.com/agent-sandbox/sandbox-go/providers"
)

// removals tells those who wait for it what collectors remove. The nil removals
// tell nobody. All methods can be called at the same time.
type removals struct {
	mu       sync.Mutex
	watchers []*[]providers.Removed // guarded by mu, as what they point to
}

// watch begins to note what is removed; stop ends that and returns it, the first
// first.
func (r *removals) watch() (stop func() []providers.Removed) {
	list := new([]providers.Removed)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watchers = append(r.watchers, list)
	return func() []providers.Removed {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.watchers = slices.DeleteFunc(r.watchers, func(w *[]providers.Removed) bool { return w == list })
		return *list
	}
}

func (r *removals) note(kind providers.RemovedKind, id string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.watchers {
		*w = append(*w, providers.Removed{Kind: kind, ID: id})
	}
}
