package e2b_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/gateway"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/providers/e2b"
	"github.com/agent-sandbox/sandbox-go/providers/providertest"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

// newGateway serves real sandboxes on a listener and returns a key.
func newGateway(t testing.TB, l net.Listener) string {
	t.Helper()
	srv, err := gateway.New(&gateway.Options{Provider: e2b.NewLocal(t), StateDir: filepath.Join(t.TempDir(), "gateway"), Logger: e2b.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	key, err := srv.Keys().Create("test")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := srv.Shutdown(ctx); err != nil {
			t.Error("shutdown:", err)
		}
		if err := <-served; err != nil {
			t.Error("serve:", err)
		}
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	return key.Secret
}

// listen returns a listener and the address of it, as settings have it.
func listen(t testing.TB, network string) (net.Listener, string) {
	t.Helper()
	at, prefix := "127.0.0.1:0", "http://"
	if network == "unix" {
		at, prefix = filepath.Join(t.TempDir(), "s"), "unix:"
	}
	l, err := net.Listen(network, at)
	if err != nil {
		t.Fatal(err)
	}
	return l, prefix + l.Addr().String()
}

func TestContractAgainstGateway(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			l, addr := listen(t, network)
			key := newGateway(t, l)
			profile := e2b.Cloud()
			profile.ListLag = 0 // it is ours
			providertest.Run(t, func(t *testing.T) providers.Provider {
				p, err := e2b.Open(profile, providers.Config{Logger: e2b.Logger(t), Settings: map[string]string{e2b.SettingAPIURL: addr, e2b.SettingAPIKey: key}})
				if err != nil {
					t.Fatal(err)
				}
				return p
			}, providertest.Options{})
		})
	}
}

// A pause leaves the end of a sandbox where it is, although the gateway moves that
// of a paused one.
func TestPauseKeepsTheEndOnGateway(t *testing.T) {
	l, addr := listen(t, "tcp")
	key := newGateway(t, l)
	t.Setenv("SANDBOX_CONFIG_DIR", t.TempDir())
	t.Chdir(t.TempDir())
	c, err := sandboxfn.NewClient(&sandboxfn.ClientOptions{
		Provider: "e2b", APIURL: addr, SandboxURL: addr, APIKey: sandboxfn.NewSecret(key), Logger: e2b.Logger(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	ctx := t.Context()
	sb, err := c.Create(ctx, &sandboxfn.CreateOptions{Lifetime: 2 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	left := func() time.Duration {
		t.Helper()
		info, err := sb.Info(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return time.Until(info.ExpiresAt)
	}
	if err := sb.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	if d := left(); d < 24*time.Hour {
		t.Errorf("the end of a paused sandbox is in %v", d)
	}
	for range 2 { // one that runs is left as it is
		if err := sb.Resume(ctx); err != nil {
			t.Fatal(err)
		}
		if d := left(); d < 2*time.Hour-2*time.Minute || d > 2*time.Hour+2*time.Second {
			t.Errorf("after the pause the end is in %v", d)
		}
	}
}

func TestClientAgainstGateway(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			l, addr := listen(t, network)
			key := newGateway(t, l)
			t.Setenv("SANDBOX_CONFIG_DIR", t.TempDir())
			t.Chdir(t.TempDir())
			providertest.RunClient(t, func(t *testing.T) *sandboxfn.Client {
				c, err := sandboxfn.NewClient(&sandboxfn.ClientOptions{
					Provider: "e2b", APIURL: addr, SandboxURL: addr, APIKey: sandboxfn.NewSecret(key), Logger: e2b.Logger(t),
				})
				if err != nil {
					t.Fatal(err)
				}
				return c
			}, providertest.ClientOptions{})
		})
	}
}

// Named commands pass the gateway: their list, and what it says of one that is not
// there.
func TestNamedCommandsOnGateway(t *testing.T) {
	l, addr := listen(t, "tcp")
	key := newGateway(t, l)
	t.Setenv("SANDBOX_CONFIG_DIR", t.TempDir())
	t.Chdir(t.TempDir())
	c, err := sandboxfn.NewClient(&sandboxfn.ClientOptions{
		Provider: "e2b", APIURL: addr, SandboxURL: addr, APIKey: sandboxfn.NewSecret(key), Logger: e2b.Logger(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	sb, err := c.Create(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if list, err := sb.Commands(t.Context()); err != nil || list == nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := sb.Invoke(t.Context(), "nope", nil, nil); !errors.Is(err, sandboxfn.ErrNamedCommandNotFound) {
		t.Errorf("%v", err)
	}
}
