package sandboxfn

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func TestDiagnose(t *testing.T) {
	c := localClient(t)
	found, err := c.Diagnose(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(found, func(f Finding) bool { return f.What == "isolation" })
	if i < 0 || found[i].Level != FindingOK {
		t.Errorf("%+v", found)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Diagnose(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := c.Diagnose(t.Context(), &DiagnoseOptions{Provider: "e2b"}); !errors.Is(err, errdefs.ErrNotSupported) && !errors.Is(err, errdefs.ErrAuth) {
		t.Errorf("a provider that knows nothing: %v", err)
	}
}
