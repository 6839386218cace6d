//go:build linux

package server

import (
	"context"
	"errors"
	"net/http"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

// asUser puts the user that a call acts as into its context: the one of its
// Basic header, or the default user.
type asUser struct{ users *account.Book }

func (a asUser) context(ctx context.Context, h http.Header) (context.Context, error) {
	// A header of another kind names nobody, as with envd.
	name, _, _ := (&http.Request{Header: h}).BasicAuth()
	u, err := a.users.Lookup(name)
	if err != nil {
		var unavailable *account.UnavailableError
		if errors.As(err, &unavailable) {
			return nil, fault.New(connect.CodeUnauthenticated, "E3008", "%s", err)
		}
		return nil, fault.New(connect.CodeInternal, "E3008", "look up user: %v", err)
	}
	return account.NewContext(ctx, u), nil
}

// WrapUnary implements connect.Interceptor.
func (a asUser) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		ctx, err := a.context(ctx, req.Header())
		if err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (a asUser) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (a asUser) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		ctx, err := a.context(ctx, conn.RequestHeader())
		if err != nil {
			return err
		}
		return next(ctx, conn)
	}
}
