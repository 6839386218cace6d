package fault

import (
	"errors"
	"net/http"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// statuses are those of the HTTP API for the kinds of failures of calls.
var statuses = map[connect.Code]int{
	connect.CodeCanceled:           499, // the client has gone; nobody reads it
	connect.CodeInvalidArgument:    http.StatusBadRequest,
	connect.CodeOutOfRange:         http.StatusBadRequest,
	connect.CodeDeadlineExceeded:   http.StatusRequestTimeout,
	connect.CodeNotFound:           http.StatusNotFound,
	connect.CodeAlreadyExists:      http.StatusConflict,
	connect.CodeAborted:            http.StatusConflict,
	connect.CodeFailedPrecondition: http.StatusConflict,
	connect.CodePermissionDenied:   http.StatusForbidden,
	connect.CodeResourceExhausted:  http.StatusTooManyRequests,
	connect.CodeUnimplemented:      http.StatusNotImplemented,
	connect.CodeUnavailable:        http.StatusServiceUnavailable,
	connect.CodeUnauthenticated:    http.StatusUnauthorized,
}

// byCode are the statuses of failures whose kind says less than their code:
// the process protocol calls some of them internal.
var byCode = map[errdefs.Code]int{
	"E3011": http.StatusBadRequest,
	"E3013": http.StatusConflict,
	"E4003": http.StatusConflict,
	"E4004": http.StatusInsufficientStorage,
	"E4005": http.StatusConflict,
	"E4006": http.StatusBadRequest,
}

// Of takes err apart for the HTTP API. An error without a code has the status
// of its kind, and 500 when it has none.
func Of(err error) (status int, code errdefs.Code, message string) {
	status, message = http.StatusInternalServerError, err.Error()
	if call, ok := errors.AsType[*connect.Error](err); ok {
		message, code = call.Message(), errdefs.Code(call.Meta().Get(Header))
		if s := statuses[call.Code()]; s != 0 {
			status = s
		}
	} else {
		code = errdefs.CodeOf(err)
	}
	if s := byCode[code]; s != 0 {
		status = s
	}
	if code == "E8020" && status == http.StatusTooManyRequests {
		status = http.StatusRequestEntityTooLarge // waiting does not help
	}
	return status, code, message
}

// Answer answers a request of the HTTP API with err.
func Answer(w http.ResponseWriter, err error) {
	status, code, message := Of(err)
	HTTP(w, status, code, message)
}
