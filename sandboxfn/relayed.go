package sandboxfn

import (
	"context"
	"errors"
	"maps"
	"sync"
	"syscall"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

const (
	// inputPiece is how much of what a worker is sent goes into one request, in
	// bytes.
	inputPiece = 1 << 20
	// inputOverhead is what a request has beside that.
	inputOverhead = 4 << 10

	lastInputTime = time.Second     // for what is still to be sent on a closed connection
	endInputTime  = 5 * time.Second // for telling a worker that its caller has left
)

// relayed is the connection to a worker without a channel: a relay inside
// carries it on its standard streams (docs/protocol.md, "Frames over the
// process API").
type relayed struct {
	conn   *streamConn
	out    *worker.Records
	err    *worker.Before
	piece  int            // bytes of one request
	cancel func()         // ends a request in progress
	sender sync.WaitGroup // the goroutine that sends input
}

// launchRelayed starts a worker behind a relay. A server that knows nothing of
// us will do.
func (sb *Sandbox) launchRelayed(ctx context.Context, spec workerSpec) (*workerProc, error) {
	mark := newToken()
	env := maps.Clone(spec.Env)
	if env == nil {
		env = map[string]string{}
	}
	env[worker.EnvConn], env[worker.EnvMark] = worker.ConnStdio, mark
	delete(env, worker.EnvCounters)
	stream, err := sb.envd.Start(ctx, &envd.StartOptions{
		Path: spec.Path, Args: spec.Args, Env: env, User: spec.User, Dir: spec.Dir, Stdin: true,
		Bound: true, // a worker whose caller is lost has nobody to work for
	})
	if err != nil {
		return nil, err
	}
	r := &relayed{conn: newStreamConn(), out: worker.NewRecords(mark), err: worker.NewBefore(mark), piece: inputPiece}
	if most := sb.limits.RequestBytes; most > 0 {
		r.piece = int(min(int64(r.piece), max(most-inputOverhead, most/2, 1)))
	}
	w := &workerProc{conn: r.conn, sb: sb, stream: stream, relayed: r, ended: make(chan struct{})}
	life, cancel := context.WithCancel(sb.life)
	r.cancel = cancel
	r.sender.Go(func() { r.send(life, w) })
	return w, nil
}

// take handles what the relay writes.
func (r *relayed) take(w *workerProc, spec workerSpec, ev envd.Event) error {
	if ev.Stderr != nil {
		// The worker's own comes in records. Behind the mark are last words of a
		// relay.
		if b := r.err.Cut(ev.Stderr); len(b) > 0 && spec.Stderr != nil {
			spec.Stderr(b)
		}
		return nil
	}
	err := r.out.Feed(ev.Stdout, func(kind worker.RecordKind, b []byte) error {
		if kind == worker.RecordFrames {
			r.conn.feed(b)
		} else {
			w.print(spec, kind, b)
		}
		return nil
	})
	if err != nil {
		return errdefs.Wrap("E9005", "run worker", "", err)
	}
	return nil
}

// end runs once nothing more comes from the relay. What a relay writes before
// its mark, its worker writes again; where there was no worker it must be shown.
func (r *relayed) end(w *workerProc, spec workerSpec) {
	if !r.out.Started() {
		if b := r.out.Before(); len(b) > 0 && spec.Stdout != nil {
			spec.Stdout(b)
		}
	}
	if !r.err.Over() {
		if b := r.err.Text(); len(b) > 0 && spec.Stderr != nil {
			spec.Stderr(b)
		}
	}
	r.conn.end(w.result.Err)
	r.cancel()
}

// send sends what is written to the connection, in order, until that is closed
// or the process has ended. Then it sees to it that the process ends.
func (r *relayed) send(ctx context.Context, w *workerProc) {
	err := r.sendAll(ctx, w)
	select {
	case <-w.ended:
		return
	default:
	}
	// What is left to do must not end with the connection.
	ctx, cancel := context.WithTimeout(w.sb.life, endInputTime)
	defer cancel()
	pid := uint32(w.pid())
	if err == nil {
		err = w.sb.envd.CloseStdin(ctx, pid)
	}
	if err != nil || !w.endsWithin(ctx, lastInputTime) {
		w.sb.envd.Signal(ctx, pid, syscall.SIGKILL, envd.Tree)
		w.endsWithin(ctx, endInputTime)
	}
	w.stream.Close(errWorkerClosed)
}

func (w *workerProc) endsWithin(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-w.ended:
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}

func (r *relayed) sendAll(ctx context.Context, w *workerProc) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.sender.Go(func() { // a worker that takes nothing holds nobody up
		select {
		case <-r.conn.gone:
		case <-ctx.Done():
			return
		}
		t := time.NewTimer(lastInputTime)
		defer t.Stop()
		select {
		case <-t.C:
			cancel()
		case <-ctx.Done():
		}
	})
	pid := uint32(w.pid())
	write := func(p []byte) error { return w.sb.envd.SendInput(ctx, pid, p) }
	finish := ctx.Err
	if w.sb.limits == (providers.TransportLimits{}) { // else a stream of input would be cut
		in, err := w.sb.envd.OpenInput(ctx, pid, false)
		if err != nil {
			return r.lostInput(w, err)
		}
		defer in.Abandon()
		write = func(p []byte) error { return in.Write(ctx, p) }
		finish = func() error { return in.Close(ctx) }
	}
	var piece []byte
	for {
		if piece = r.conn.take(piece, r.piece); len(piece) == 0 {
			return finish()
		}
		if err := write(piece); err != nil {
			return r.lostInput(w, err)
		}
	}
}

// lostInput ends the connection because of a failure to send.
func (r *relayed) lostInput(w *workerProc, err error) error {
	if errors.Is(err, ErrProcessGone) || errdefs.CodeOf(err) == "E3013" {
		r.conn.refuse(err) // how it ended, the stream tells
		return err
	}
	err = w.sb.explain(w.sb.life, err)
	r.conn.end(err)
	return err
}
