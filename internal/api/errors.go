package api

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Error is what the service answered, or why no answer came. Every errdefs
// error of a request has one as its cause.
type Error struct {
	Status     int           // of HTTP; zero: no whole answer
	NativeCode string        // the service's own code; empty: none, or the status again
	Message    string        // what it said, on one line and cut; empty: nothing
	RequestID  string        // under which the service knows the request; empty: unknown
	RetryAfter time.Duration // how long it asks to wait; zero: it does not say
	Undone     bool          // the request certainly had no effect
	IsJSON     bool          // the answer was an object of JSON
	Err        error         // failure of the transport; nil with an answer

	said bool // the error around this one says Message
}

// Error shows what the service said; the error around it says the rest.
func (e *Error) Error() string {
	if e.Err != nil {
		return e.Err.Error()
	}
	if e.said {
		if e.RequestID == "" {
			return ""
		}
		return "request " + e.RequestID
	}
	var b strings.Builder
	if e.Message == "" {
		b.WriteString("no message")
	} else {
		b.WriteString(strconv.Quote(e.Message))
	}
	if e.NativeCode != "" {
		b.WriteString(" (" + e.NativeCode + ")")
	}
	if e.RequestID != "" {
		b.WriteString(" (request " + e.RequestID + ")")
	}
	return b.String()
}

// Unwrap returns the failure of the transport.
func (e *Error) Unwrap() error { return e.Err }

// Status is the HTTP status that err reports; zero when none came.
func Status(err error) int {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Status
	}
	return 0
}

// Quiet is err as a cause that errors.Is and errors.As find and that adds
// nothing to the text: for errors whose message says the same better.
func Quiet(err error) error { return quiet{err} }

type quiet struct{ err error }

func (quiet) Error() string   { return "" }
func (q quiet) Unwrap() error { return q.err }

// Undone reports whether the request that failed with err certainly had no
// effect: it was never sent, or the service says so.
func Undone(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Undone
}

const (
	maxText   = 300     // bytes of foreign text in a message
	maxErrors = 1 << 20 // bytes read of the body of a failure
)

// capacity are codes with which a service says that it made nothing.
var capacity = []string{"sandbox_capacity_unavailable", "sandbox_placement_timeout", "sandbox_no_compatible_node"}

// answered turns an unsuccessful answer into an error.
func (c *Client) answered(rt *route, res *http.Response, body []byte) error {
	e := c.parse(res, body)
	err := c.coded(rt, e) // sets Undone, too
	code := errdefs.Code(res.Header.Get(codeHeader))
	if !believed(code) || e.Message == "" || !e.IsJSON {
		return err
	}
	e.said = true
	return &errdefs.Error{Code: code, Op: rt.op, Message: e.Message, Err: e}
}

// codeHeader carries the exact code of a failure where the service is ours.
const codeHeader = "Sandbox-Error-Code"

// believed reports whether a service may name a code: those about sandboxes and
// what it can do. What is wrong with the key, the connection or the service
// itself is seen better from here.
func believed(c errdefs.Code) bool {
	return c.Meaning() != "" && (c.Class() == "E2000" || c == "E8004" || c == "E3008")
}

// coded chooses the code for what the service answered.
func (c *Client) coded(rt *route, e *Error) error {
	is := func(code errdefs.Code, message, hint string) error {
		return &errdefs.Error{Code: code, Op: rt.op, Message: message, Suggestion: hint, Err: e}
	}
	provider := fmt.Sprintf("provider %q", c.o.Provider)
	quota := func() error {
		return is("E2002", fmt.Sprintf("quota reached on %s; nothing was created (%d)", provider, e.Status), "")
	}
	switch e.Status {
	case http.StatusUnauthorized:
		e.Undone = true
		m := "API key refused by " + c.Address() + " (401): key " + Hint(c.o.Key)
		if c.o.KeySource != "" {
			m += " from " + c.o.KeySource
		}
		hint := "check that the key is whole, not expired and made for this address"
		if c.o.Place != "" {
			hint = "check that the key belongs to " + c.o.Place + " and is not expired"
		}
		return is("E1001", m, hint)
	case http.StatusForbidden:
		e.Undone = true
		if saysQuota(e) {
			return quota()
		}
		return is("E1006", "not allowed by "+provider+" (403)", "")
	case http.StatusTooManyRequests:
		e.Undone = true
		if saysQuota(e) {
			return quota()
		}
		return is("E8010", provider+" limits the rate of requests (429)"+waitText(e.RetryAfter), "")
	case http.StatusProxyAuthRequired:
		e.Undone = true
		return is("E5001", "the proxy wants credentials (407)", "put user and password into HTTPS_PROXY")
	case http.StatusRequestEntityTooLarge:
		e.Undone = true
		return is("E5010", "body is larger than "+provider+" allows (413)", "")
	case http.StatusNotImplemented, http.StatusMethodNotAllowed:
		e.Undone = true
		return is("E8004", fmt.Sprintf("%s does not do this (%d)", provider, e.Status), "")
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return is("E5002", fmt.Sprintf("%s ran out of time (%d)", provider, e.Status), "")
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		e.Undone = slices.Contains(capacity, e.NativeCode)
		return is("E8011", fmt.Sprintf("%s is overloaded or out of order (%d)%s", provider, e.Status, waitText(e.RetryAfter)), "")
	}
	if e.Status >= 500 {
		if rt.create {
			return is("E2000", fmt.Sprintf("%s at %s failed (%d)", provider, c.Address(), e.Status), "")
		}
		return is("E8000", fmt.Sprintf("%s at %s failed (%d)", provider, c.Address(), e.Status), "")
	}
	if e.Status >= 400 && e.IsJSON {
		e.Undone = true
		return c.refused(rt, e, is)
	}
	return is("E8006", fmt.Sprintf("%s does not answer as a control plane does (%d)", c.Address(), e.Status),
		"check the address of the API, and what stands between (a proxy, a login page)")
}

// refused chooses the code for a refusal that depends on what was asked.
func (c *Client) refused(rt *route, e *Error, is func(errdefs.Code, string, string) error) error {
	provider := fmt.Sprintf("provider %q", c.o.Provider)
	switch e.Status {
	case http.StatusNotFound:
		if saysNoRoute(e) {
			return is("E8000", fmt.Sprintf("%s does not know %s %s (404)", c.Address(), rt.method, rt.path),
				"check the address of the API, its path too, and the version of what serves it")
		}
		if rt.create {
			m := fmt.Sprintf("template %q not found on %s", cut(rt.template), provider)
			if c.o.Place != "" {
				m += " (" + c.o.Place + ")"
			}
			return is("E2001", m, "")
		}
		if rt.id != "" {
			return is("E2020", fmt.Sprintf("sandbox %s is not there (404)", clean(rt.id)), "")
		}
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		if rt.id != "" && !rt.body {
			return is("E2020", fmt.Sprintf("sandbox %s is not there: the id is refused (%d)", clean(rt.id), e.Status), "")
		}
		return is("E2011", fmt.Sprintf("refused by %s (%d)", provider, e.Status), "")
	case http.StatusConflict:
		return is("E8000", c.Address()+" says that the sandbox is in a state that does not allow this (409)", "ask for its state, and try again")
	case http.StatusGone:
		if rt.id != "" {
			return is("E2020", fmt.Sprintf("sandbox %s is not there any more (410)", clean(rt.id)), "")
		}
	}
	return is("E8000", fmt.Sprintf("refused by %s at %s (%d)", provider, c.Address(), e.Status), "")
}

// saysNoRoute tells that the address does not have the request at all from that
// it does not have what the request is about.
func saysNoRoute(e *Error) bool {
	text := strings.ToLower(e.Message)
	for _, w := range []string{"no such route", "route not found", "page not found", "no matching operation", "no such path"} {
		if strings.Contains(text, w) {
			return true
		}
	}
	return false
}

func waitText(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return "; it asks to wait " + d.String()
}

// saysQuota tells a quota from a limit of the rate: both come as 429, and only
// the latter passes by waiting.
func saysQuota(e *Error) bool {
	text := strings.ToLower(e.NativeCode + " " + e.Message)
	if strings.Contains(text, "rate limit") || strings.Contains(text, "throttl") {
		return false
	}
	for _, w := range []string{"quota", "maximum number", "concurrent sandboxes", "sandbox limit", "limitexceeded", "resourceexhausted"} {
		if strings.Contains(text, w) {
			return true
		}
	}
	return false
}

// parse reads the answer of a failure. Services differ: the code is a number or
// a text, and ids of requests are in the head or in the body.
func (c *Client) parse(res *http.Response, body []byte) *Error {
	e := &Error{Status: res.StatusCode, RetryAfter: retryAfter(res.Header.Get("Retry-After"), time.Now())}
	for _, h := range []string{"X-Request-Id", "X-Fc-Request-Id", "X-Acs-Request-Id"} {
		if v := res.Header.Get(h); v != "" {
			e.RequestID = c.text(v)
			break
		}
	}
	var in struct {
		Code      json.RawMessage `json:"code"`
		ErrorCode json.RawMessage `json:"error_code"`
		Message   json.RawMessage `json:"message"`
		Error     json.RawMessage `json:"error"`
		RequestID json.RawMessage `json:"requestId"`
	}
	if json.Unmarshal(body, &in) != nil || !strings.HasPrefix(strings.TrimSpace(string(body)), "{") {
		if isHTML(res, body) {
			e.Message = "a page of HTML"
		} else {
			e.Message = c.text(string(body))
		}
		return e
	}
	e.IsJSON = true
	for _, raw := range []json.RawMessage{in.ErrorCode, in.Code} {
		var s string
		if json.Unmarshal(raw, &s) == nil && s != "" && s != strconv.Itoa(e.Status) {
			e.NativeCode = c.text(s)
			break
		}
	}
	for _, raw := range []json.RawMessage{in.Message, in.Error} {
		var s string
		if json.Unmarshal(raw, &s) == nil && s != "" {
			e.Message = c.text(s)
			break
		}
	}
	var id string
	if e.RequestID == "" && json.Unmarshal(in.RequestID, &id) == nil {
		e.RequestID = c.text(id)
	}
	return e
}

func isHTML(res *http.Response, body []byte) bool {
	return strings.HasPrefix(res.Header.Get("Content-Type"), "text/html") || strings.HasPrefix(strings.TrimSpace(string(body)), "<")
}

// text is foreign text for a message: on one line, bounded, without the key.
func (c *Client) text(s string) string {
	return clean(strings.ReplaceAll(s, c.o.Key, "***"))
}

// clean makes text fit for one line.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError || !unicode.IsPrint(r) && r != ' ' {
			return ' '
		}
		return r
	}, cut(s))
	return strings.Join(strings.Fields(s), " ")
}

func cut(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}

// retryAfter reads the header, which holds seconds or a date.
func retryAfter(v string, now time.Time) time.Duration {
	v = strings.TrimSpace(v)
	if v == "" {
		return 0
	}
	if secs, err := strconv.ParseInt(v, 10, 32); err == nil {
		return time.Duration(max(secs, 0)) * time.Second
	}
	at, err := http.ParseTime(v)
	if err != nil || !at.After(now) {
		return 0
	}
	return at.Sub(now)
}

// invalid is an answer that makes no sense.
func (c *Client) invalid(rt *route, status int, what string) error {
	return &errdefs.Error{
		Code: "E8006", Op: rt.op, Message: c.Address() + " answered " + what,
		Suggestion: "check the address of the API, and what stands between (a proxy, a login page)",
		Err:        &Error{Status: status, Message: what},
	}
}

// requestTimeout is the cause of a context that a timeout of the client ended.
type requestTimeout struct{ after time.Duration }

func (e *requestTimeout) Error() string { return "no answer within " + e.after.String() }

func (e *requestTimeout) Is(target error) bool { return target == context.DeadlineExceeded }

// broken turns a failure of the transport into an error. sent says that the
// service may have seen the request.
func (c *Client) broken(ctx context.Context, rt *route, err error, sent bool) error {
	cause := &Error{Undone: !sent, Err: err}
	if ue, ok := errors.AsType[*url.Error](err); ok {
		cause.Err = ue.Err // the address is in the message already
	}
	if ctx.Err() != nil {
		cause.Err = ended(ctx)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return errdefs.Wrap("E5002", rt.op, "no answer from "+c.Address(), cause)
		}
		return errdefs.Wrap("E5004", rt.op, "cancelled by the caller", cause)
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return &errdefs.Error{Code: "E5001", Op: rt.op, Message: "the certificate of " + c.Address() + " is not trusted", Suggestion: CertHint, Err: cause}
	}
	if !sent {
		return errdefs.Wrap("E5001", rt.op, "cannot connect to "+c.Address(), cause)
	}
	return errdefs.Wrap("E5003", rt.op, "the connection to "+c.Address()+" broke before the answer was whole", cause)
}

// CertHint is what to do about a certificate that is not trusted.
const CertHint = "name the file that holds the certificate of its authority: ca_file (SANDBOX_CA_FILE)"

// ended says why ctx did, so that errors.Is finds both the context's error and
// the cause that the caller gave.
func ended(ctx context.Context) error {
	cause := context.Cause(ctx)
	if _, ours := errors.AsType[*requestTimeout](cause); ours || errors.Is(cause, ctx.Err()) {
		return cause
	}
	return fmt.Errorf("%w: %w", ctx.Err(), cause)
}

// Address is where the client's requests go, for messages.
func (c *Client) Address() string {
	if rest, ok := strings.CutPrefix(c.o.URL, "unix:"); ok {
		return "unix:/" + strings.TrimLeft(rest, "/")
	}
	return c.base.String()
}
