package worker_test

import (
	"context"
	"errors"
	"net"
	"reflect"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/internal/frame"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// TestServeEnds checks that functions in the caller's own process, which can't be
// killed, find that their caller is gone although it has not told them.
func TestServeEnds(t *testing.T) {
	for name, delay := range map[string]time.Duration{"once": 0, "later": 20 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			began, ended := make(chan struct{}), make(chan error, 1)
			f := worker.Function{ID: "f", Run: func(ctx context.Context, _ *envelope.OpenedRequest, _ *envelope.Response) {
				close(began)
				time.Sleep(delay) // it looks at its context afterwards
				select {
				case <-ctx.Done():
					ended <- ctx.Err()
				case <-time.After(20 * time.Second):
					ended <- errors.New("it still waits for its caller")
				}
			}}
			var errs envelope.Errors
			ours, theirs := net.Pipe()
			served := make(chan struct{})
			go func() {
				defer close(served)
				worker.Serve(theirs, "unit", "token", []worker.Function{f}, &errs, func(uint64) context.Context { return t.Context() })
			}()
			if m, err := frame.NewReader(ours).Next(); err != nil || m.Type != frame.Hello {
				t.Fatalf("%v, %v", m.Type, err)
			}
			var args struct{}
			p, err := envelope.EncodeRequest(envelope.Request{ID: "f"}, envelope.Args(reflect.TypeFor[struct{}](), "f", nil), &errs, &args, 1<<10)
			if err != nil {
				t.Fatal(err)
			}
			if err := frame.NewWriter(ours).Write(&frame.Message{Type: frame.Call, ID: 1, Body: p.Body}); err != nil {
				t.Fatal(err)
			}
			<-began
			ours.Close()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			<-served
		})
	}
}
