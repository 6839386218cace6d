//go:build linux

package server

import (
	"context"
	"net/http"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/sandbox-go/internal/pb/filesystem/filesystemconnect"
	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
	"github.com/agent-sandbox/sandbox-go/runtime/policy"
)

// protocolRows are what the protocol of envd and our own additions to it offer,
// by the names that switches call it. They have no path of the HTTP API; where
// that offers the same, it does so by the same name.
var protocolRows = []endpoint.Endpoint{
	{Name: "core.health", Summary: "Tells that the sandbox lives."},
	{Name: "process.exec", Summary: "Starts a program."},
	{Name: "process.list", Summary: "Lists what was started and runs."},
	{Name: "process.connect", Summary: "Follows a program that runs."},
	{Name: "process.input", Summary: "Writes to the standard input of a program."},
	{Name: "process.signal", Summary: "Signals and kills programs."},
	{Name: "terminal.open", Summary: "Starts a program in a terminal."},
	{Name: "terminal.connect", Summary: "Follows a terminal."},
	{Name: "terminal.input", Summary: "Types into a terminal."},
	{Name: "terminal.resize", Summary: "Sets the size of a terminal."},
	{Name: "terminal.signal", Summary: "Signals and kills what runs in a terminal."},
	{Name: "functions.call", Summary: "Gives a program the connection of its caller; it is started by process.exec."},
	{Name: "file_ops.stat", Summary: "Describes a path."},
	{Name: "file_ops.list", Summary: "Lists a folder."},
	{Name: "file_ops.mkdir", Summary: "Makes folders."},
	{Name: "file_ops.move", Summary: "Renames."},
	{Name: "file_ops.remove", Summary: "Removes files and folders."},
	{Name: "file_ops.upload", Summary: "Writes files, whole or joined from parts."},
	{Name: "file_ops.download", Summary: "Reads files."},
	{Name: "file_ops.watch", Summary: "Reports changes in a folder."},
	{Name: "ports.connect", Summary: "Connects to a port of the sandbox."},
	{Name: "system.metrics", Summary: "Tells what the sandbox uses."},
	{Name: "system.env_read", Summary: "Lists the variables of the sandbox."},
}

// gates says which endpoint a procedure is. Those of processes are asked for
// where it is known whether a terminal is meant.
var gates = map[string]string{
	filesystemconnect.FilesystemStatProcedure:             "file_ops.stat",
	filesystemconnect.FilesystemListDirProcedure:          "file_ops.list",
	filesystemconnect.FilesystemMakeDirProcedure:          "file_ops.mkdir",
	filesystemconnect.FilesystemMoveProcedure:             "file_ops.move",
	filesystemconnect.FilesystemRemoveProcedure:           "file_ops.remove",
	filesystemconnect.FilesystemWatchDirProcedure:         "file_ops.watch",
	filesystemconnect.FilesystemCreateWatcherProcedure:    "file_ops.watch",
	filesystemconnect.FilesystemGetWatcherEventsProcedure: "file_ops.watch",
	filesystemconnect.FilesystemRemoveWatcherProcedure:    "file_ops.watch",
}

// gate lets calls pass whose endpoint is on.
type gate struct{ policy *policy.Policy }

func (g gate) check(procedure string) error {
	name, ok := gates[procedure]
	if !ok {
		return nil
	}
	if err := g.policy.Endpoint(name); err != nil {
		return policy.Connect(err)
	}
	return nil
}

// WrapUnary implements connect.Interceptor.
func (g gate) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if err := g.check(req.Spec().Procedure); err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (g gate) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (g gate) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if err := g.check(conn.Spec().Procedure); err != nil {
			return err
		}
		return next(ctx, conn)
	}
}

// switched answers with next while the endpoint of the request is on.
func (s *Server) switched(name func(*http.Request) string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.policy.Endpoint(name(r)); err != nil {
			policy.HTTP(w, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// named is the same for a path that is one endpoint.
func (s *Server) named(name string, next http.HandlerFunc) http.HandlerFunc {
	return s.switched(func(*http.Request) string { return name }, next).ServeHTTP
}

// transferName is the endpoint that a request for /files is.
func transferName(r *http.Request) string {
	if r.Method == http.MethodPost {
		return "file_ops.upload"
	}
	return "file_ops.download"
}
