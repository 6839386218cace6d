package gentest

import (
	"context"
	"testing"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

func TestInProcess(t *testing.T) { run(t, sandboxtest.InProcess(t)) }

func TestProcess(t *testing.T) { run(t, sandboxtest.Process(t)) }

// run compares every plain call of the table with the wrapper's under ctx.
func run(t *testing.T, ctx context.Context) {
	for _, c := range Table() {
		t.Run(c.Name, func(t *testing.T) {
			want, wantErr := c.Plain(ctx)
			got, err := c.Remote(ctx)
			if diff := Diff(got, err, want, wantErr); diff != "" {
				t.Errorf("(-got +want):\n%s", diff)
			}
		})
	}
}
