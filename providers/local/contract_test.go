//go:build linux

package local_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/providers/local"
	"github.com/agent-sandbox/sandbox-go/providers/providertest"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func openLocal(t *testing.T) *local.Provider {
	t.Helper()
	p, err := local.New(providers.Config{StateDir: t.TempDir(), Settings: map[string]string{"pool": "0"}})
	if err != nil {
		t.Fatal(err)
	}
	switch err := p.Check(context.Background()); {
	case err == nil:
	case errors.Is(err, errdefs.ErrIsolation) && os.Getenv("CI") == "":
		t.Skip(err)
	default:
		t.Fatal(err)
	}
	return p
}

func TestContract(t *testing.T) {
	providertest.Run(t, func(t *testing.T) providers.Provider { return openLocal(t) }, providertest.Options{})
}

func TestClientContract(t *testing.T) {
	providertest.RunClient(t, func(t *testing.T) *sandboxfn.Client {
		openLocal(t).Close() // skips where there are no sandboxes
		dir := t.TempDir()
		c, err := sandboxfn.NewClient(&sandboxfn.ClientOptions{Provider: "local", StateDir: filepath.Join(dir, "state"), CacheDir: filepath.Join(dir, "cache")})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}, providertest.ClientOptions{})
}
