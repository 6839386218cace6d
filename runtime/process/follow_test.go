//go:build linux

package process

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
)

// lazyContext has passed its deadline and says so a moment later.
type lazyContext struct {
	context.Context
	over chan struct{}
}

func (c lazyContext) Deadline() (time.Time, bool) { return time.Now().Add(-time.Millisecond), true }
func (c lazyContext) Done() <-chan struct{}       { return c.over }

func (c lazyContext) Err() error {
	select {
	case <-c.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// TestDeadlineBeatsItsKill: a command that was killed because of the deadline of its
// request is one whose time was over, however fast the kill was.
func TestDeadlineBeatsItsKill(t *testing.T) {
	s := New(Options{})
	defer s.Shutdown(t.Context())
	p, sub := startForTest(t, s, "sh", "-c", "echo begun; exec sleep 60")
	defer sub.close()
	<-sub.wake
	if err := p.kill(t.Context(), s.table); err != nil {
		t.Fatal(err)
	}
	<-p.ended
	ctx := lazyContext{t.Context(), make(chan struct{})}
	time.AfterFunc(20*time.Millisecond, func() { close(ctx.over) })
	var out string
	err := s.follow(ctx, p, sub, time.Hour, func(e *pb.ProcessEvent) error {
		if e.GetEnd() != nil {
			t.Errorf("got %v", e)
		}
		out += string(e.GetData().GetStdout())
		return nil
	})
	if connect.CodeOf(err) != connect.CodeDeadlineExceeded || out != "begun\n" {
		t.Errorf("got %q, %v", out, err)
	}
}
