package sandboxfn

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// What is done by id leaves a paused sandbox paused.
func TestByID(t *testing.T) {
	c := localClient(t)
	ctx := WithClient(t.Context(), c)
	sb, err := Create(ctx, &CreateOptions{Metadata: map[string]string{"k": "v"}})
	if errors.Is(err, ErrIsolation) && os.Getenv("CI") != "true" {
		t.Skipf("this machine cannot isolate: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	if err := sb.FS(ctx).WriteFile("file", []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Pause(ctx, sb.ID()); err != nil {
		t.Fatal(err)
	}
	s, err := Snapshot(ctx, sb.ID(), &SnapshotOptions{Name: "n"})
	if err != nil || s.SandboxID != sb.ID() || s.Name != "n" {
		t.Fatalf("%+v, %v", s, err)
	}
	info, err := Inspect(ctx, sb.ID())
	if err != nil || info.State != "paused" || info.Metadata["k"] != "v" {
		t.Errorf("%+v, %v", info, err)
	}
	if err := GC(ctx); err != nil {
		t.Error(err)
	}
	if removed, err := Collect(ctx); err != nil || len(removed) > 0 {
		t.Errorf("of what lives: %v, %v", removed, err)
	}
	copied, err := Create(ctx, &CreateOptions{Snapshot: s.ID})
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	if b, err := copied.FS(ctx).ReadFile("file"); string(b) != "kept" {
		t.Errorf("%q, %v", b, err)
	}
	if err := DeleteSnapshot(ctx, s.ID); err != nil {
		t.Error(err)
	}
	const unknown = "aaaaaaaaaaaaaaaaaaaa"
	if _, err := Inspect(ctx, unknown); !errors.Is(err, ErrNotFound) {
		t.Errorf("inspect: %v", err)
	}
	if _, err := Snapshot(ctx, unknown, nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("snapshot: %v", err)
	}
	for name, do := range map[string]func() error{
		"inspect":  func() error { _, err := Inspect(ctx, ""); return err },
		"snapshot": func() error { _, err := Snapshot(ctx, "", nil); return err },
	} {
		if err := do(); !errors.Is(err, ErrOption) {
			t.Errorf("%s of no id: %v", name, err)
		}
	}
}

// GC removes what a sandbox left whose processes are gone.
func TestGCRemovesRemains(t *testing.T) {
	c := localClient(t)
	if err := c.GC(t.Context()); err != nil {
		t.Fatal(err)
	}
	remains := filepath.Join(c.opts.StateDir, "local", "boxes", "aaaaaaaaaaaaaaaaaaaa")
	if err := os.Mkdir(remains, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(remains, "lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if removed, err := c.Collect(t.Context()); err != nil || !slices.Equal(removed, []Removed{{Kind: RemovedSandbox, ID: "aaaaaaaaaaaaaaaaaaaa"}}) {
		t.Fatal(removed, err)
	}
	if _, err := os.Stat(remains); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if err := hostClient(t, &hostProvider{}, nil).GC(t.Context()); !errors.Is(err, ErrNotSupported) {
		t.Errorf("a provider that keeps nothing: %v", err)
	}
	c.Close()
	if err := c.GC(context.Background()); errdefs.CodeOf(err) != "E2000" {
		t.Errorf("a closed client: %v", err)
	}
}

func TestClientSettings(t *testing.T) {
	t.Setenv("SANDBOX_LIFETIME", "90s")
	const key = "e2b_0123456789abcdef0123456789abcdef01234567"
	c, err := NewClient(&ClientOptions{Provider: "local", APIKey: NewSecret(key)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got := c.Settings()
	for _, want := range []Setting{
		{"provider", "local", "provider from option Provider"},
		{"api_key", "e2b***67", "option APIKey"},
		{"lifetime", "1m30s", "environment SANDBOX_LIFETIME"},
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%+v is not in %+v", want, got)
		}
	}
	if got[0].Name != "provider" {
		t.Errorf("first: %+v", got[0])
	}
}

// Only an address of this process is forwarded.
func TestForwarded(t *testing.T) {
	sb := hostSandbox(t)
	if sb.Forwarded(8080) {
		t.Error("before there is an address")
	}
	if _, err := sb.URL(8080); err != nil {
		t.Fatal(err)
	}
	if !sb.Forwarded(8080) || sb.Forwarded(8081) {
		t.Error("the wrong port")
	}
}
