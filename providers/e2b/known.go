package e2b

import (
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
)

// maxKnown bounds what is remembered of sandboxes.
const maxKnown = 4096

// fact is what this process learnt about a sandbox.
type fact struct {
	domain  string // of its data plane
	token   providers.Secret
	traffic providers.Secret
	expires time.Time // by the clock of this machine; zero: unknown
	paused  time.Time // the end it had before this provider paused it; zero: unknown
	killed  bool      // by this provider
}

// known remembers facts by id, for at most maxKnown sandboxes. The zero value
// is empty.
type known struct {
	mu    sync.Mutex
	facts map[string]fact // guarded by mu
}

func (k *known) get(id string) (fact, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f, ok := k.facts[id]
	return f, ok
}

func (k *known) update(id string, change func(*fact)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.facts == nil {
		k.facts = map[string]fact{}
	}
	f, ok := k.facts[id]
	if !ok && len(k.facts) >= maxKnown {
		for other := range k.facts { // any: it can all be asked again
			delete(k.facts, other)
			break
		}
	}
	change(&f)
	k.facts[id] = f
}

// learn keeps what the answer of create or connect says.
func (k *known) learn(sb *api.Sandbox, domain string) fact {
	var f fact
	k.update(sb.SandboxID, func(f2 *fact) {
		f2.domain, f2.token = domain, providers.Secret(sb.EnvdAccessToken)
		if sb.TrafficAccessToken != nil {
			f2.traffic = providers.Secret(*sb.TrafficAccessToken)
		}
		f = *f2
	})
	return f
}
