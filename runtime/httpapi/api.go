//go:build linux

package httpapi

import (
	"log/slog"

	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
	"github.com/agent-sandbox/sandbox-go/runtime/environment"
	"github.com/agent-sandbox/sandbox-go/runtime/filesystem"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
)

// Version is the version of the API that GET /capabilities states.
const Version = "1"

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
}

// API serves the groups core, file_ops, process, terminal, system and
// dev_tools.git_*. Its methods are safe for concurrent use. The zero API can
// only list its rows.
type API struct {
	opts Options
	rows []endpoint.Endpoint // of the whole server, see Describe
	gate endpoint.Gate
}

// New returns an API.
func New(o Options) *API {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &API{opts: o}
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

// Endpoints lists the rows of this package.
func (a *API) Endpoints() []endpoint.Endpoint {
	var rows []endpoint.Endpoint
	rows = append(rows, a.coreRows()...)
	rows = append(rows, a.systemRows()...)
	return rows
}

// UserHeader names the user that a request acts as; without it, that is the
// default user of the sandbox.
const UserHeader = "Sandbox-User"
