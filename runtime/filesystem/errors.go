//go:build linux

package filesystem

import (
	"errors"
	"fmt"
	"net/http"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/policy"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// errKind refuses FIFOs, sockets and devices: reading one could wait for ever
// or do something.
var errKind = errors.New("not a regular file")

// kind is how a failure looks on both sides of the wire.
type kind struct {
	rpc    connect.Code
	status int // of /files
	code   errdefs.Code
}

// kinds maps errno(3). What is internal here is internal with envd.
var kinds = []struct {
	err error
	kind
}{
	{unix.ENOENT, kind{connect.CodeNotFound, http.StatusNotFound, "E4001"}},
	{unix.EACCES, kind{connect.CodePermissionDenied, http.StatusForbidden, "E4002"}},
	{unix.EPERM, kind{connect.CodePermissionDenied, http.StatusForbidden, "E4002"}},
	{unix.EROFS, kind{connect.CodePermissionDenied, http.StatusForbidden, "E4002"}},
	{unix.ENOTDIR, kind{connect.CodeInternal, http.StatusInternalServerError, "E4003"}},
	{unix.EISDIR, kind{connect.CodeInvalidArgument, http.StatusBadRequest, "E4003"}},
	{errKind, kind{connect.CodeInvalidArgument, http.StatusBadRequest, "E4003"}},
	{unix.ENOSPC, kind{connect.CodeResourceExhausted, http.StatusInsufficientStorage, "E4004"}},
	{unix.EDQUOT, kind{connect.CodeResourceExhausted, http.StatusInsufficientStorage, "E4004"}},
	{unix.EFBIG, kind{connect.CodeResourceExhausted, http.StatusInsufficientStorage, "E4004"}}, // RLIMIT_FSIZE
	{unix.EEXIST, kind{connect.CodeInternal, http.StatusInternalServerError, "E4005"}},
	{unix.ENOTEMPTY, kind{connect.CodeInternal, http.StatusInternalServerError, "E4005"}},
	{unix.ENAMETOOLONG, kind{connect.CodeInvalidArgument, http.StatusBadRequest, "E4006"}},
	{unix.ELOOP, kind{connect.CodeFailedPrecondition, http.StatusBadRequest, "E4006"}},
	{errMissed, kind{connect.CodeResourceExhausted, http.StatusTooManyRequests, "E4007"}},
	{account.ErrTilde, kind{connect.CodeInvalidArgument, http.StatusBadRequest, "E4006"}},
	{account.ErrNUL, kind{connect.CodeInternal, http.StatusInternalServerError, "E4006"}},
}

func kindOf(err error) kind {
	if r, ok := errors.AsType[*policy.Refusal](err); ok {
		return kind{r.RPC(), r.Status(), r.Code}
	}
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return k.kind
		}
	}
	return kind{connect.CodeInternal, http.StatusInternalServerError, "E4000"}
}

// rpcError is the answer of a call that was to do something with path.
func rpcError(doing, path string, err error) error {
	var already *connect.Error
	if errors.As(err, &already) {
		return err
	}
	k := kindOf(err)
	return fault.New(k.rpc, k.code, "%s", describe(doing, path, err))
}

// httpError is the same on /files.
func httpError(w http.ResponseWriter, doing, path string, err error) {
	k := kindOf(err)
	fault.HTTP(w, k.status, k.code, describe(doing, path, err))
}

func describe(doing, path string, err error) string {
	return fmt.Sprintf("%s '%s': %v", doing, path, err)
}

// pathError explains a path that [account.User.Path] refused.
func pathError(u *account.User, err error) error {
	return fmt.Errorf("failed to expand path '' for user '%s': %w", u.Name, err)
}
