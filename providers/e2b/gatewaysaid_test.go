package e2b_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/providers/e2b"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// What a gateway cannot give is no success, and leaves nothing.
func TestGatewayGivesLess(t *testing.T) {
	l, addr := listen(t, "tcp")
	key := newGateway(t, l)
	p, err := e2b.New(providers.Config{Logger: e2b.Logger(t), Settings: map[string]string{e2b.SettingAPIURL: addr, e2b.SettingAPIKey: key}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for says, req := range map[string]providers.CreateRequest{
		"asked for network all":    {Network: &providers.NetworkPolicy{Mode: "all"}},
		"asked for 6400 CPUs, the": {Resources: providers.Resources{CPUMilli: 6400000}},
	} {
		if _, err := p.Create(t.Context(), req); errdefs.CodeOf(err) != "E8004" || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	page, err := p.List(t.Context(), providers.ListRequest{})
	if err != nil || len(page.Sandboxes) != 0 {
		t.Errorf("left: %+v, %v", page, err)
	}
}

// Paused and expired sandboxes are what they are on the local provider too, in
// words that come once.
func TestClientTexts(t *testing.T) {
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
	defer c.Close()
	ctx := t.Context()
	sb, err := c.Create(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	for path, says := range map[string]string{"/nowhere": "no such file or directory", "/etc/passwd": "not a directory", "": "empty"} {
		for _, err := range sb.Watch(ctx, path, nil) {
			if err == nil || strings.Count(err.Error(), says) != 1 || strings.Contains(err.Error(), " :") {
				t.Errorf("watch %q: %v", path, err)
			}
			break
		}
	}
	if _, err := sb.FileURL("", nil); err == nil || strings.Contains(err.Error(), " :") {
		t.Error(err)
	}
	if err := sb.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	err = sb.Pause(ctx)
	if !errors.Is(err, sandboxfn.ErrPaused) || strings.Count(err.Error(), "paused") != 1 || strings.Contains(err.Error(), "E8000") {
		t.Error(err)
	}
	_, err = sb.Command(ctx, "true").Output()
	if want := "E2024 use sandbox " + sb.ID() + ": it is paused"; !errors.Is(err, sandboxfn.ErrPaused) || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if m, err := sb.Metrics(ctx); err != nil || m.MemoryTotal == 0 { // what is used is not known everywhere
		t.Errorf("metrics of a paused one: %+v, %v", m, err)
	}
	if err := sb.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	end, err := sb.SetLifetime(ctx, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(end))
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if _, err = sb.Info(ctx); err != nil || time.Now().After(deadline) {
			break
		}
	}
	if !errors.Is(err, sandboxfn.ErrExpired) {
		t.Errorf("after its end: %v", err)
	}
}
