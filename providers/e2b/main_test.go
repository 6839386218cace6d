package e2b

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agent-sandbox/sandbox-go/internal/fakes/e2bcloud"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/providers/local"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// isolated is why no sandbox can be built here; nil where it can.
var isolated = sync.OnceValue(func() error {
	p, err := local.New(providers.Config{})
	if err != nil {
		return err
	}
	defer p.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return p.Check(ctx)
})

// newLocal is a provider of real sandboxes, of which nothing may be left when
// the test ends.
func newLocal(t testing.TB) *local.Provider {
	t.Helper()
	switch err := isolated(); {
	case err == nil:
	case errors.Is(err, errdefs.ErrIsolation) && os.Getenv("CI") == "":
		t.Skip(err)
	default:
		t.Fatal(err)
	}
	root := t.TempDir()
	p, err := local.New(providers.Config{StateDir: root, Logger: logger(t), Settings: map[string]string{"pool": "0"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if left, _ := filepath.Glob(filepath.Join(root, "local", "boxes", "*")); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
	return p
}

func logger(t testing.TB) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

func newCloud(t testing.TB, how e2bcloud.Behaviour) *e2bcloud.Cloud {
	t.Helper()
	c, err := e2bcloud.New(&e2bcloud.Options{Provider: newLocal(t), Behaviour: how})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// to are the settings for a service at one address.
func to(addr, key string) map[string]string {
	return map[string]string{SettingAPIURL: addr, SettingSandboxURL: addr, SettingAPIKey: key, SettingAPIKeySource: "SANDBOX_API_KEY"}
}

func openE2B(t testing.TB, p Profile, set map[string]string) *Provider {
	t.Helper()
	pr, err := open(p, providers.Config{Logger: logger(t), Settings: set})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pr.Close(); err != nil {
			t.Error(err)
		}
	})
	return pr
}
