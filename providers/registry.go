package providers

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Config is what a provider is made from.
type Config struct {
	StateDir string            // folder for state of this machine; empty: the default
	CacheDir string            // folder for what can be made again; empty: the default
	Logger   *slog.Logger      // nil discards
	Settings map[string]string // settings of this provider, by key
}

// Factory makes a provider. It makes no request and starts nothing.
type Factory func(Config) (Provider, error)

var registry struct {
	mu        sync.Mutex
	factories map[string]Factory // guarded by mu
}

// Register makes a provider known under name. Packages of providers call it
// from init. A second registration of a name panics: it is a programming error.
func Register(name string, f Factory) {
	registry.mu.Lock()
	defer registry.mu.Unlock()
	if _, dup := registry.factories[name]; dup {
		panic("providers: " + name + " is registered twice")
	}
	if registry.factories == nil {
		registry.factories = map[string]Factory{}
	}
	registry.factories[name] = f
}

// Names lists the registered names, sorted.
func Names() []string {
	registry.mu.Lock()
	defer registry.mu.Unlock()
	names := make([]string, 0, len(registry.factories))
	for n := range registry.factories {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Open makes the provider registered under name. An unknown name is E8001 and
// lists those there are.
func Open(name string, cfg Config) (Provider, error) {
	registry.mu.Lock()
	f := registry.factories[name]
	registry.mu.Unlock()
	if f == nil {
		return nil, &errdefs.Error{
			Code: "E8001", Op: "choose provider",
			Message:    fmt.Sprintf("unknown provider %q; linked into this program: %s", name, strings.Join(Names(), ", ")),
			Suggestion: "use one of these names, or import the package of the provider you want",
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return f(cfg)
}
