package sandboxfn

import (
	"context"
	"log/slog"
	"net"
	"os"
	"sync"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// modePools returns the workers of a mode.
func modePools(m *worker.Mode) *poolSet {
	if !m.InProcess {
		return processPools(m)
	}
	return m.Keep(func() (any, func(context.Context) error) {
		ps := newPools(inProcessMaker{}, slog.New(slog.DiscardHandler))
		return ps, ps.close
	}).(*poolSet)
}

// inProcessMaker starts workers that are goroutines of this process. Everything
// goes through the codec and the frames, as it does to a sandbox; what a
// function prints goes straight to this process's own streams.
type inProcessMaker struct{}

func (inProcessMaker) start(ctx context.Context, s *setup, _, _ func([]byte)) (*made, error) {
	ours, theirs := net.Pipe()
	secrets, err := s.resolveSecrets(ctx)
	if err != nil {
		return nil, &stepError{"start", err}
	}
	h := &inProcessHandle{conn: ours, ended: make(chan struct{}), env: s.opts.Env, secrets: secrets}
	token := newToken()
	var fs []worker.Function
	for _, f := range functions.ofUnit(s.unit) {
		fs = append(fs, f.guest())
	}
	go func() {
		defer close(h.ended)
		worker.Serve(theirs, s.unit, token, fs, knownErrors(), h.base)
	}()
	return &made{
		conn: ours, proc: h, token: token,
		attach: func(w *workerConn) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.w = w
		},
		end: func(ctx context.Context) error {
			select {
			case <-h.ended:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		},
	}, nil
}

// inProcessHandle is a worker that runs in this process.
type inProcessHandle struct {
	conn  net.Conn
	ended chan struct{}

	env     map[string]string
	secrets map[string]Secret

	mu sync.Mutex
	w  *workerConn // guarded by mu
}

// lookupEnv finds the variables that a worker of its own would have; those of
// this process are there, too.
func (h *inProcessHandle) lookupEnv(name string) (string, bool) {
	if v, ok := h.env[name]; ok {
		return v, true
	}
	if v, ok := h.secrets[name]; ok {
		return v.Reveal(), true
	}
	return os.LookupEnv(name)
}

// base is the context of a function: it has the values of the caller's, so that
// the calls it makes run in the same mode.
func (h *inProcessHandle) base(call uint64) context.Context {
	h.mu.Lock()
	w := h.w
	h.mu.Unlock()
	if w != nil {
		if c := w.host(call); c != nil {
			return withEnv(context.WithoutCancel(c.caller), h.lookupEnv)
		}
	}
	return context.Background()
}

func (h *inProcessHandle) done() <-chan struct{}                               { return h.ended }
func (h *inProcessHandle) exit() workerExit                                    { return workerExit{Code: -1} }
func (h *inProcessHandle) delivered() (stdout, stderr uint64)                  { return 0, 0 }
func (h *inProcessHandle) waitDelivered(context.Context, uint64, uint64) error { return nil }
func (h *inProcessHandle) close()                                              { h.conn.Close() }
