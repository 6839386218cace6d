package fc_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agent-sandbox/sandbox-go/internal/fakes/e2bcloud"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/providers/e2b"
	"github.com/agent-sandbox/sandbox-go/providers/fc"
	"github.com/agent-sandbox/sandbox-go/providers/local"
	"github.com/agent-sandbox/sandbox-go/providers/providertest"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
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

// newCloud starts a service as Alibaba's, with real sandboxes behind it.
func newCloud(t *testing.T, how e2bcloud.Behaviour) *e2bcloud.Cloud {
	t.Helper()
	switch err := isolated(); {
	case err == nil:
	case errors.Is(err, errdefs.ErrIsolation) && os.Getenv("CI") == "":
		t.Skip(err)
	default:
		t.Fatal(err)
	}
	p, err := local.New(providers.Config{StateDir: t.TempDir(), Settings: map[string]string{"pool": "0"}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := e2bcloud.New(&e2bcloud.Options{Provider: p, Behaviour: how})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	})
	return c
}

func openFC(t *testing.T, c *e2bcloud.Cloud) providers.Provider {
	t.Helper()
	p, err := fc.New(providers.Config{
		Logger:   slog.New(slog.NewTextHandler(t.Output(), nil)),
		Settings: map[string]string{e2b.SettingAPIURL: c.URL, e2b.SettingSandboxURL: c.URL, e2b.SettingAPIKey: c.Key},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestContract(t *testing.T) {
	c := newCloud(t, e2bcloud.Behaviour{ListLag: time.Second, Strict: true})
	providertest.Run(t, func(t *testing.T) providers.Provider { return openFC(t, c) }, providertest.Options{
		CancelAfter: []time.Duration{0, 10 * time.Millisecond, 100 * time.Millisecond},
	})
	if n := c.Living(); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}

func TestClient(t *testing.T) {
	c := newCloud(t, e2bcloud.Behaviour{ListLag: time.Second, Strict: true})
	t.Setenv("SANDBOX_CONFIG_DIR", t.TempDir())
	t.Chdir(t.TempDir())
	t.Run("client", func(t *testing.T) { runClient(t, c) })
	if n := c.Living(); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}

func runClient(t *testing.T, c *e2bcloud.Cloud) {
	providertest.RunClient(t, func(t *testing.T) *sandboxfn.Client {
		cl, err := sandboxfn.NewClient(&sandboxfn.ClientOptions{
			Provider: "fc", APIURL: c.URL, SandboxURL: c.URL, APIKey: sandboxfn.NewSecret(c.Key),
			Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		return cl
	}, providertest.ClientOptions{Foreign: true})
}
