package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const (
	maxControlBody = 1 << 20          // of a request to the control plane
	bodyTimeout    = 30 * time.Second // to send it
	answerTimeout  = 30 * time.Second // to take the answer
)

// codeHeader carries the code of errdefs beside an error's body, as our runtime
// does, so that our own client need not guess it.
const codeHeader = "Sandbox-Error-Code"

// A refusal is an answer that is not a success.
type refusal struct {
	status    int
	code      errdefs.Code // may be empty
	errorCode string       // of the protocol's open set; may be empty
	message   string
}

func (r *refusal) Error() string { return fmt.Sprintf("%d: %s", r.status, r.message) }

func refuse(status int, code errdefs.Code, format string, args ...any) *refusal {
	return &refusal{status: status, code: code, message: fmt.Sprintf(format, args...)}
}

// notSupported is the answer to what this gateway does not have. Nothing was
// done.
func notSupported(what string) *refusal {
	return &refusal{status: http.StatusNotImplemented, code: "E8004", errorCode: "not_supported", message: what + " not supported by this gateway"}
}

// asRefusal turns an error of the provider into an answer.
func asRefusal(err error) *refusal {
	var r *refusal
	if errors.As(err, &r) {
		return r
	}
	code := errdefs.CodeOf(err)
	status, errorCode := http.StatusInternalServerError, "internal_server_error"
	switch code {
	case "E2001", "E2020", "E2021", "E2022", "E2023":
		status, errorCode = http.StatusNotFound, ""
	case "E2011", "E3008", "E8004":
		status, errorCode = http.StatusBadRequest, ""
	case "E2024":
		status, errorCode = http.StatusConflict, ""
	case "E2002":
		status, errorCode = http.StatusTooManyRequests, ""
	case "E5002":
		status, errorCode = http.StatusGatewayTimeout, ""
	case "E2000", "E2009", "E2010":
		errorCode = "sandbox_create_failed"
	}
	message := "the gateway failed; its log says why"
	var e *errdefs.Error
	switch {
	case isGone(err):
		message = howEnded(err) // the provider's own text names directories
	case errors.As(err, &e):
		message = e.Message // without causes, which may hold paths of this machine
		if e.Suggestion != "" {
			message += "; " + e.Suggestion
		}
	}
	return &refusal{status: status, code: code, errorCode: errorCode, message: message}
}

// fail writes a refusal. SDKs read the status from the body, so there always
// is one.
func fail(w http.ResponseWriter, r *refusal) {
	if r.code != "" {
		w.Header().Set(codeHeader, string(r.code))
	}
	answer(w, r.status, api.ErrorBody{Code: r.status, Message: r.message, ErrorCode: r.errorCode})
}

// unread ends the connection after the answer, as a body may follow that nobody
// reads. With HTTP/2 the body is cut off alone: other requests share the
// connection, and SDKs take its end for that of their own.
func unread(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
}

// answer writes v as JSON.
func answer(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil { // all values come from us
		http.Error(w, "answer cannot be encoded", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store") // answers hold tokens
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTimeout))
	w.WriteHeader(status)
	w.Write(append(b, '\n'))
}

// presence says whether a body may be missing.
type presence int

const (
	required presence = iota
	optional
)

// decode reads the JSON body of a request into v. Names it does not know are
// ignored, as the hosted service does.
func decode(w http.ResponseWriter, r *http.Request, v any, p presence) error {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxControlBody))
	if err == nil {
		// The deadline would end the wait for the client's going away.
		http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return refuse(http.StatusRequestEntityTooLarge, "", "the body is larger than %d bytes", int64(maxControlBody))
	case err != nil:
		unread(w, r)
		return refuse(http.StatusBadRequest, "", "the body ended early")
	case len(b) == 0 && p == optional:
		return nil
	case len(b) == 0:
		return refuse(http.StatusBadRequest, "", "a JSON body is required")
	}
	if err := json.Unmarshal(b, v); err != nil {
		return refuse(http.StatusBadRequest, "", "the body is not the JSON this route takes: %s", jsonProblem(err))
	}
	return nil
}

// jsonProblem says what is wrong without showing values, which may be secrets.
func jsonProblem(err error) string {
	var typ *json.UnmarshalTypeError
	if errors.As(err, &typ) {
		return fmt.Sprintf("%s of field %q cannot be a %s", typ.Value, typ.Field, typ.Type)
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Sprintf("syntax error at byte %d", syntax.Offset)
	}
	return "wrong shape"
}
