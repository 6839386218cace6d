package e2b_test

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/internal/gateway"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/providers/e2b"
	"github.com/agent-sandbox/sandbox-go/providers/providertest"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

// newTLSGateway serves real sandboxes with a certificate that no system knows.
func newTLSGateway(t *testing.T) (addr, key, caFile string) {
	t.Helper()
	srv, err := gateway.New(&gateway.Options{Provider: e2b.NewLocal(t), StateDir: filepath.Join(t.TempDir(), "gateway"), Logger: e2b.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := srv.Shutdown(ctx); err != nil {
			t.Error("shutdown:", err)
		}
	})
	k, err := srv.Keys().Create("test")
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewUnstartedServer(srv.Handler())
	front.EnableHTTP2 = true
	front.Config.ErrorLog = log.New(io.Discard, "", 0) // refused certificates
	front.StartTLS()
	t.Cleanup(front.Close)
	caFile = filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw})
	if err := os.WriteFile(caFile, block, 0o644); err != nil {
		t.Fatal(err)
	}
	return front.URL, k.Secret, caFile
}

// The certificates of ca_file count on every way: for the control plane, for
// commands and files, and for connections that are upgraded.
func TestGatewayWithItsOwnCertificate(t *testing.T) {
	addr, key, caFile := newTLSGateway(t)
	t.Setenv("SANDBOX_CONFIG_DIR", t.TempDir())
	t.Setenv("SANDBOX_CA_FILE", caFile)
	t.Chdir(t.TempDir())
	providertest.RunClient(t, func(t *testing.T) *sandboxfn.Client {
		c, err := sandboxfn.NewClient(&sandboxfn.ClientOptions{
			Provider: "e2b", APIURL: addr, SandboxURL: addr, APIKey: sandboxfn.NewSecret(key), Logger: e2b.Logger(t),
		})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}, providertest.ClientOptions{NoPorts: true}) // a client of the test does not know the certificate
}

func TestChannelOverTLS(t *testing.T) {
	addr, key, caFile := newTLSGateway(t)
	settings := map[string]string{e2b.SettingAPIURL: addr, e2b.SettingSandboxURL: addr, e2b.SettingAPIKey: key, e2b.SettingCAFile: caFile}
	p, err := e2b.Open(e2b.Cloud(), providers.Config{Logger: e2b.Logger(t), Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	sb, err := p.Create(t.Context(), providers.CreateRequest{RequestID: "channel-over-tls"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill(context.WithoutCancel(t.Context()), sb.ID)
	port, err := p.(providers.PortExposer).Port(t.Context(), sb.ID, 8080)
	if err != nil || port.RootCAs == nil {
		t.Errorf("a port has no certificates: %v", err)
	}
	o := envd.Options{URL: sb.Data.URL, Headers: sb.Data.Headers, Token: sb.Data.Token.Reveal(), RootCAs: sb.Data.RootCAs}
	ec, err := envd.New(&o)
	if err != nil {
		t.Fatal(err)
	}
	defer ec.Close()
	conn, err := ec.OpenChannel(t.Context(), envd.NewChannelID())
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if _, err := ec.DialPort(t.Context(), 1); !errors.As(err, new(*envd.Refusal)) {
		t.Errorf("a port where nothing listens: %v", err)
	}

	// Without them nothing is trusted.
	o.RootCAs = nil
	stranger, err := envd.New(&o)
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	if err := stranger.Health(t.Context()); err == nil {
		t.Error("a certificate that nobody knows is trusted")
	}
	delete(settings, e2b.SettingCAFile)
	q, err := e2b.Open(e2b.Cloud(), providers.Config{Logger: e2b.Logger(t), Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if _, err := q.Get(t.Context(), sb.ID); err == nil {
		t.Error("the control plane is trusted")
	}
}
