//go:build linux

package httpapi

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
	"github.com/agent-sandbox/sandbox-go/runtime/environment"
	"github.com/agent-sandbox/sandbox-go/runtime/filesystem"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
)

// Version is the version of the API that GET /capabilities states.
const Version = "1"

// Limits that hold whatever a policy says.
const (
	maxStarted    = 100               // processes of POST /process/start at the same time
	defaultRun    = 300 * time.Second // of a command that names no time
	maxRun        = 24 * time.Hour    // that a command can ask for
	maxTerminals  = 10                // sessions
	maxWebSocket  = 128 << 10         // bytes of one message of a client
	heartbeat     = 15 * time.Second  // of silence in an event stream
	maxInlineFile = 16 << 20          // bytes of a file in a JSON body
	terminalIdle  = 30 * time.Minute  // of a terminal that nobody is attached to
)

// Usage is what a sandbox uses and what it may use; sizes are in bytes.
type Usage struct {
	CPUs       float64
	CPUPercent float64 // of them all together, 0 to 100

	MemoryUsed, MemoryTotal int64
	MemoryCache             int64
	DiskUsed, DiskTotal     int64
}

// Options says what an [API] serves.
type Options struct {
	Process *process.Service    // required
	Files   *filesystem.Service // required
	Env     *environment.Environment
	WorkDir string       // what an empty path means; empty: the home of the user
	Shell   string       // of terminals that name none; empty: /bin/bash, or /bin/sh
	Usage   func() Usage // required
	Token   bool         // whether requests need a token
	Logger  *slog.Logger // nil discards

	// Zero: the defaults above.
	Heartbeat    time.Duration
	TerminalIdle time.Duration
}

// API serves the groups core, file_ops, process, terminal, system and
// dev_tools.git_*. Its methods are safe for concurrent use. The zero API can
// only list its rows.
type API struct {
	opts    Options
	started chan struct{} // holds a token for each process of POST /process/start

	// ctx ends with the API.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	closed   bool                // guarded by mu
	sessions map[string]*session // guarded by mu; nil values are being made

	rows []endpoint.Endpoint // of the whole server, see Describe
	gate endpoint.Gate
}

// New returns an API. [API.Close] ends it.
func New(o Options) *API {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Heartbeat == 0 {
		o.Heartbeat = heartbeat
	}
	if o.TerminalIdle == 0 {
		o.TerminalIdle = terminalIdle
	}
	a := &API{opts: o, started: make(chan struct{}, maxStarted), sessions: map[string]*session{}}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	return a
}

// Describe tells the API of which rows the whole server consists, its own
// included, and what switches them: what GET /capabilities and GET
// /openapi.json say. It must be called before the API serves.
func (a *API) Describe(rows []endpoint.Endpoint, gate endpoint.Gate) {
	if gate == nil {
		gate = endpoint.Defaults(rows)
	}
	a.rows, a.gate = rows, gate
}

// Close ends all terminals and streams and refuses new ones. It returns when
// nothing of the API runs, and is idempotent. The processes end with their
// service, which has to be shut down before.
func (a *API) Close() {
	a.mu.Lock()
	a.closed = true
	for _, s := range a.sessions {
		if s != nil {
			s.stopIdle()
		}
	}
	a.mu.Unlock()
	a.cancel()
	a.wg.Wait()
}

// Endpoints lists the rows of this package.
func (a *API) Endpoints() []endpoint.Endpoint {
	var rows []endpoint.Endpoint
	rows = append(rows, a.coreRows()...)
	rows = append(rows, a.fileRows()...)
	rows = append(rows, a.processRows()...)
	rows = append(rows, a.terminalRows()...)
	rows = append(rows, a.systemRows()...)
	rows = append(rows, a.gitRows()...)
	return rows
}

// UserHeader names the user that a request acts as; without it, that is the
// default user of the sandbox.
const UserHeader = "Sandbox-User"
