package sandboxfn

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// workerSpec says which worker to start.
type workerSpec struct {
	Path           string   // executable inside the sandbox
	Args           []string // argv[1:]
	Env            map[string]string
	User, Dir      string
	Stdout, Stderr func([]byte) // called in order per stream from one goroutine; must not retain
}

// workerExit says how a worker ended.
type workerExit struct {
	Code   int    // -1 after a signal, or when Err is set
	Signal string // "killed"; empty: it exited
	OOM    bool   // killed at the memory limit
	Err    error  // the stream was lost, and nothing is known of the process; or a rule that ended it
}

// workerProc is one running worker process and the connection that carries its
// frames. The methods are safe for concurrent use.
type workerProc struct {
	conn net.Conn // frames

	sb      *Sandbox
	stream  *envd.Stream
	relayed *relayed      // how frames travel where there is no channel; nil: by the channel
	ended   chan struct{} // closed after the last callback
	result  workerExit    // valid after ended

	mu       sync.Mutex
	stdout   uint64        // guarded by mu; bytes handed to the callbacks
	stderr   uint64        // guarded by mu
	progress chan struct{} // guarded by mu; closed and replaced when a counter moves and someone waits
	closed   bool          // guarded by mu
}

// startWorker starts a process that has a connection to this one: a channel as
// descriptor 3 where the runtime has channels, else what a relay makes of its
// standard streams. The process ends when the connection is closed.
func (sb *Sandbox) startWorker(ctx context.Context, spec workerSpec) (*workerProc, error) {
	leave, err := sb.enter()
	if err != nil {
		return nil, err
	}
	w, err := sb.launchWorker(ctx, spec)
	if err != nil {
		leave()
		return nil, sb.explain(ctx, err)
	}
	// A closed sandbox ends its workers: their streams fail, their connections close.
	stop := context.AfterFunc(sb.life, func() {
		w.stream.Close(context.Cause(sb.life))
		w.conn.Close()
	})
	go func() {
		defer leave()
		defer stop()
		w.pump(spec)
		if w.relayed != nil {
			w.relayed.sender.Wait()
		}
	}()
	return w, nil
}

func (sb *Sandbox) launchWorker(ctx context.Context, spec workerSpec) (*workerProc, error) {
	can, err := sb.envd.Features(ctx)
	if err != nil {
		return nil, err
	}
	if !can.Channels || sb.noChannels.Load() {
		return sb.launchRelayed(ctx, spec)
	}
	id := envd.NewChannelID()
	conn, err := sb.envd.OpenChannel(ctx, id)
	if err != nil {
		if sb.channels || !refusesUpgrade(err) {
			return nil, err
		}
		// Something in between passes no upgrades.
		sb.log.DebugContext(ctx, "no channel to a worker", "err", err)
		sb.noChannels.Store(true)
		return sb.launchRelayed(ctx, spec)
	}
	stream, err := sb.envd.Start(ctx, &envd.StartOptions{
		Path: spec.Path, Args: spec.Args, Env: spec.Env, User: spec.User, Dir: spec.Dir, Channel: id,
	})
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &workerProc{conn: conn, sb: sb, stream: stream, ended: make(chan struct{})}, nil
}

// refusesUpgrade reports whether an answer says that there are no channels on
// the way taken, and not that this one failed.
func refusesUpgrade(err error) bool {
	switch errdefs.CodeOf(err) {
	case "E3006", "E4000", "E4001", "E4002", "E8004":
		return true
	}
	return false
}

// pump hands output to the callbacks until the process has ended.
func (w *workerProc) pump(spec workerSpec) {
	defer close(w.ended)
	defer w.stream.Close(context.Canceled)
	w.result = w.follow(spec)
	if w.relayed != nil {
		w.relayed.end(w, spec)
	}
}

// follow is the life of the process.
func (w *workerProc) follow(spec workerSpec) workerExit {
	for {
		ev, err := w.stream.Next()
		switch {
		case err != nil:
			return workerExit{Code: -1, Err: w.sb.explain(w.sb.life, err)}
		case ev.End != nil:
			return workerExitOf(ev.End)
		case w.relayed != nil:
			if err := w.relayed.take(w, spec, ev); err != nil {
				return workerExit{Code: -1, Err: err}
			}
		case ev.Stdout != nil:
			w.print(spec, worker.RecordStdout, ev.Stdout)
		case ev.Stderr != nil:
			w.print(spec, worker.RecordStderr, ev.Stderr)
		}
	}
}

// print hands output to its callback and counts it.
func (w *workerProc) print(spec workerSpec, kind worker.RecordKind, b []byte) {
	to, stdout, stderr := spec.Stdout, len(b), 0
	if kind == worker.RecordStderr {
		to, stdout, stderr = spec.Stderr, 0, len(b)
	}
	if to != nil {
		to(b)
	}
	w.count(stdout, stderr)
}

func workerExitOf(e *envd.End) workerExit {
	x := workerExit{Code: e.ExitCode}
	if !e.Exited {
		x.Code = -1
		x.Signal, _ = signalOf(e)
		x.OOM = e.MemoryLimit
	}
	if e.TimeLimit != "" {
		x.Err = errdefs.New("E3001", "run worker", e.TimeLimit)
	}
	return x
}

// signalOf reads the name of the signal from "signal: killed (core dumped)".
func signalOf(e *envd.End) (name string, ok bool) {
	if e.Exited {
		return "", false
	}
	for _, text := range []string{e.Status, e.Error} {
		if rest, found := strings.CutPrefix(text, "signal: "); found {
			name, _, _ = strings.Cut(rest, " (")
			return name, true
		}
	}
	return "unknown", true
}

func (w *workerProc) count(stdout, stderr int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stdout += uint64(stdout)
	w.stderr += uint64(stderr)
	if w.progress != nil {
		close(w.progress)
		w.progress = nil
	}
}

// kill sends SIGKILL to the worker and everything it started. A worker that has
// ended is not an error.
func (w *workerProc) kill(ctx context.Context) error {
	err := w.sb.envd.Signal(ctx, uint32(w.pid()), syscall.SIGKILL, envd.Tree)
	if errors.Is(err, ErrProcessGone) {
		return nil
	}
	return w.sb.explain(ctx, err)
}

// pid is the worker's id inside the sandbox.
func (w *workerProc) pid() int { return int(w.stream.Pid()) }

// done is closed when the process has ended, or its stream was lost, and all
// output was delivered.
func (w *workerProc) done() <-chan struct{} { return w.ended }

// exit says how the worker ended. It is valid once done is closed.
func (w *workerProc) exit() workerExit { return w.result }

// delivered is how many bytes the callbacks have been given.
func (w *workerProc) delivered() (stdout, stderr uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stdout, w.stderr
}

// waitDelivered returns nil once the callbacks have been given that many bytes,
// or the cause of ctx when it ends first. After the end of the process there is
// nothing more to wait for.
func (w *workerProc) waitDelivered(ctx context.Context, stdout, stderr uint64) error {
	for {
		w.mu.Lock()
		if w.stdout >= stdout && w.stderr >= stderr {
			w.mu.Unlock()
			return nil
		}
		if w.progress == nil {
			w.progress = make(chan struct{})
		}
		moved := w.progress
		w.mu.Unlock()
		select {
		case <-moved:
		case <-w.ended:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// close closes the connection, which ends the worker, and gives its stream up.
// It does not wait for a callback in progress; done does. It is idempotent.
func (w *workerProc) close() {
	w.mu.Lock()
	again := w.closed
	w.closed = true
	w.mu.Unlock()
	w.conn.Close()
	if !again && w.relayed == nil { // a relay's stream ends when it has taken all
		w.stream.Close(errWorkerClosed)
	}
}

var errWorkerClosed = errdefs.New("E5004", "run worker", "the worker was given up")
