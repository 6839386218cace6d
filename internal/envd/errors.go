package envd

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// ErrorCodeHeader carries the exact errdefs code of a failure where the server
// is ours: in the head of unary answers, in the trailer of streams.
const ErrorCodeHeader = "Sandbox-Error-Code"

// A domain says what a Connect code is about: "not found" is a missing file
// for the file service and an ended process for the process service.
type domain int

const (
	onStart domain = iota // starting a process
	onProcess
	onInput
	onFile
)

// requestTimeout is the cause of a context that the request timeout ended.
type requestTimeout struct{ after time.Duration }

func (e *requestTimeout) Error() string { return "no answer within " + e.after.String() }

func (e *requestTimeout) Is(target error) bool { return target == context.DeadlineExceeded }

// errSilent is the cause of a stream that showed no life for too long.
var errSilent = errors.New("the stream fell silent")

// wrap turns a failure of a Connect call into an errdefs error. It is the only
// place that knows Connect codes. ctx is the context the call ran under.
func wrap(ctx context.Context, op string, d domain, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*errdefs.Error](err); ok {
		return e
	}
	ce, ok := errors.AsType[*connect.Error](err)
	if ok && connect.IsWireError(err) {
		return fromWire(op, d, ce)
	}
	_, stranger := errors.AsType[*untrusted](err)
	if ctx.Err() != nil || isDial(err) || !ok || isIO(err) || stranger {
		return wrapTransport(ctx, op, err)
	}
	switch ce.Code() {
	case connect.CodeUnavailable:
		return errdefs.New("E5003", op, "the sandbox does not answer: "+cut(ce.Message()))
	case connect.CodeUnauthenticated, connect.CodePermissionDenied:
		return errdefs.New("E1006", op, "the sandbox's server refused the access token")
	}
	return errdefs.New("E3006", op, "the server does not speak the envd protocol: "+cut(ce.Message()))
}

// wrapTransport turns a failure below the protocol into an errdefs error. It is
// the only place that maps context errors.
func wrapTransport(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return ContextError(ctx, op)
	}
	if e, ok := errors.AsType[*untrusted](err); ok {
		return &errdefs.Error{
			Code: "E5001", Op: op, Message: "the certificate of " + e.host + " is not trusted", Err: e.err.Err,
			Suggestion: "name the file that holds the certificate of its authority: ca_file (SANDBOX_CA_FILE)",
		}
	}
	if isDial(err) {
		return errdefs.Wrap("E5001", op, "the sandbox's server cannot be reached", err)
	}
	if e, ok := errors.AsType[*requestTimeout](err); ok {
		return errdefs.Wrap("E5002", op, "request timeout", e)
	}
	return errdefs.Wrap("E5003", op, "the connection to the sandbox broke", plain(err))
}

// untrusted is the failure to trust the certificate of host.
type untrusted struct {
	host string
	err  *tls.CertificateVerificationError
}

func (e *untrusted) Error() string { return e.err.Error() }
func (e *untrusted) Unwrap() error { return e.err }

// trusting notes of which host a certificate was refused; other errors pass.
func trusting(host string, err error) error {
	if e, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return &untrusted{host, e}
	}
	return err
}

// ContextError says why ctx ended: E5002 for a clock, E5003 for a stream that
// fell silent, E5004 for the caller. The cause stays reachable with errors.Is.
func ContextError(ctx context.Context, op string) error {
	cause := context.Cause(ctx)
	if e, ok := errors.AsType[*errdefs.Error](cause); ok {
		return e
	}
	if e, ok := errors.AsType[*requestTimeout](cause); ok {
		return errdefs.Wrap("E5002", op, "request timeout", e)
	}
	if errors.Is(cause, errSilent) {
		return errdefs.Wrap("E5003", op, "the connection to the sandbox is lost", cause)
	}
	if !errors.Is(cause, ctx.Err()) {
		cause = fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errdefs.Wrap("E5002", op, "the deadline of the caller's context passed", cause)
	}
	return errdefs.Wrap("E5004", op, "cancelled by the caller", cause)
}

// fromWire turns an error that the server sent into ours. A server of ours
// names the code; of others the Connect code and, where that is not enough, the
// text decide.
func fromWire(op string, d domain, ce *connect.Error) error {
	msg := cut(ce.Message())
	if code, ok := hinted(ce.Meta()); ok {
		return coded(code, op, msg)
	}
	lower := strings.ToLower(msg)
	switch ce.Code() {
	case connect.CodeUnauthenticated:
		if strings.Contains(lower, "username") || strings.Contains(lower, "user ") {
			return coded("E3008", op, msg)
		}
		return coded("E1006", op, msg)
	case connect.CodeUnimplemented:
		return coded("E8004", op, msg)
	case connect.CodeUnavailable:
		return coded("E5003", op, msg)
	case connect.CodeCanceled:
		return coded("E5003", op, "the server gave the request up: "+msg)
	case connect.CodeDeadlineExceeded:
		if d == onStart || d == onProcess {
			return coded("E3001", op, msg)
		}
		return coded("E5002", op, msg)
	}
	if d == onFile {
		return coded(fileCode(ce.Code(), lower), op, msg)
	}
	switch ce.Code() {
	case connect.CodeNotFound:
		if d == onStart {
			return coded("E3007", op, msg)
		}
		return coded("E3010", op, msg)
	case connect.CodeInvalidArgument:
		if d == onStart {
			return coded(startCode(lower), op, msg)
		}
		return coded("E3011", op, msg)
	case connect.CodeInternal, connect.CodeFailedPrecondition:
		if d == onInput {
			return coded("E3013", op, msg)
		}
	}
	return coded("E3000", op, msg)
}

func fileCode(c connect.Code, lower string) errdefs.Code {
	switch c {
	case connect.CodeNotFound:
		return "E4001"
	case connect.CodePermissionDenied:
		return "E4002"
	case connect.CodeAlreadyExists:
		return "E4005"
	case connect.CodeResourceExhausted:
		return "E4004"
	}
	switch errno("", lower) {
	case syscall.EISDIR, syscall.ENOTDIR:
		return "E4003"
	case syscall.EEXIST, syscall.ENOTEMPTY:
		return "E4005"
	case syscall.ENAMETOOLONG, syscall.ELOOP:
		return "E4006"
	case syscall.EACCES, syscall.EPERM, syscall.EROFS:
		return "E4002"
	case syscall.ENOSPC:
		return "E4004"
	case syscall.ENOENT:
		return "E4001"
	}
	if c == connect.CodeFailedPrecondition {
		return "E4003"
	}
	return "E4000"
}

func startCode(lower string) errdefs.Code {
	switch {
	case strings.Contains(lower, "cwd"), strings.Contains(lower, "directory '"), strings.Contains(lower, "chdir"):
		return "E3012"
	case strings.Contains(lower, "not found"), strings.Contains(lower, "no such file"),
		strings.Contains(lower, "permission denied"), strings.Contains(lower, "exec format"):
		return "E3007"
	}
	return "E3011"
}

// httpError turns an unsuccessful answer of the plain HTTP routes into ours.
// It reads a bounded part of the body and does not close it.
func httpError(op string, res *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(res.Body, 8<<10))
	var e struct {
		Message string `json:"message"`
	}
	msg := strings.TrimSpace(string(body))
	if json.Unmarshal(body, &e) == nil && e.Message != "" {
		msg = e.Message
	}
	if msg = cut(msg); msg == "" {
		msg = "status " + res.Status
	}
	if code, ok := hinted(res.Header); ok && (code != "E3006" || errno("", strings.ToLower(msg)) == 0) {
		return coded(code, op, msg)
	}
	switch s := res.StatusCode; {
	case s == http.StatusNotFound:
		return coded("E4001", op, msg)
	case s == http.StatusForbidden:
		return coded("E4002", op, msg)
	case s == http.StatusUnauthorized:
		if strings.Contains(strings.ToLower(msg), "user") {
			return coded("E3008", op, msg)
		}
		return coded("E1006", op, msg)
	case s == http.StatusConflict:
		return coded("E4005", op, msg)
	case s == http.StatusInsufficientStorage:
		return coded("E4004", op, msg)
	case s == http.StatusRequestEntityTooLarge:
		return coded("E5010", op, msg)
	case s == http.StatusBadGateway, s == http.StatusServiceUnavailable, s == http.StatusGatewayTimeout:
		return coded("E5003", op, "the sandbox does not answer: "+msg)
	case s/100 == 3:
		return coded("E3006", op, "the server answered with a redirect, which is never followed")
	}
	return coded(fileCode(connect.CodeUnknown, strings.ToLower(msg)), op, msg)
}

// hinted reads the exact code that a server of ours adds. Codes that are not
// about what a runtime does are not believed.
func hinted(h http.Header) (errdefs.Code, bool) {
	c := errdefs.Code(h.Get(ErrorCodeHeader))
	if c.Meaning() == "" {
		return "", false
	}
	switch c.Class() {
	case "E1000", "E3000", "E4000", "E8000":
		return c, true
	}
	return c, c == "E9015" || c == "E2024" || c == "E5001" // no such channel; paused; nothing listens on a port
}

// coded builds the error; failures of files hold the errno that io/fs users test for.
func coded(code errdefs.Code, op, msg string) error {
	e := &errdefs.Error{Code: code, Op: op, Message: msg}
	if code.Class() == "E4000" {
		if n := errno(code, strings.ToLower(msg)); n != 0 {
			e.Err = n
		}
	}
	return e
}

// errno finds the system's own name of a failure in a server's text, or else
// the usual one for the code.
func errno(code errdefs.Code, lower string) syscall.Errno {
	for _, t := range []struct {
		text string
		n    syscall.Errno
	}{
		{"is a directory", syscall.EISDIR},
		{"not a directory", syscall.ENOTDIR},
		{"directory not empty", syscall.ENOTEMPTY},
		{"too many levels of symbolic links", syscall.ELOOP},
		{"name too long", syscall.ENAMETOOLONG},
		{"read-only file system", syscall.EROFS},
		{"operation not permitted", syscall.EPERM},
		{"permission denied", syscall.EACCES},
		{"no space left", syscall.ENOSPC},
		{"file exists", syscall.EEXIST},
		{"cross-device", syscall.EXDEV},
		{"no such file or directory", syscall.ENOENT},
	} {
		if strings.Contains(lower, t.text) {
			return t.n
		}
	}
	switch code {
	case "E4001":
		return syscall.ENOENT
	case "E4002":
		return syscall.EACCES
	case "E4004":
		return syscall.ENOSPC
	case "E4005":
		return syscall.EEXIST
	case "E4006":
		return syscall.EINVAL
	}
	return 0
}

// isIO reports whether err comes from reading or writing the connection.
func isIO(err error) bool {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		return true
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	_, ok := errors.AsType[syscall.Errno](err)
	return ok
}

// plain strips the layers of net/http and connect whose text repeats the
// address; a broken connection in the middle never counts as an ordinary end.
func plain(err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	}
	if e, ok := errors.AsType[*net.OpError](err); ok {
		return e
	}
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	return err
}

// cut bounds foreign text in messages and drops what is not valid UTF-8.
func cut(s string) string {
	const limit = 1024
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	return strings.ToValidUTF8(s, "")
}

// FileError is the error for a message of a program about a file, such as
// "chmod: x: Operation not permitted".
func FileError(op, message string) error {
	msg := cut(message)
	return coded(fileCode(connect.CodeUnknown, strings.ToLower(msg)), op, msg)
}
