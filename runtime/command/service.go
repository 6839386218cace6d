//go:build linux

package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// maxKept bounds what an answer holds of each output, in bytes; a stream has all.
const maxKept = 8 << 20

// Options says what a [Service] serves.
type Options struct {
	Registry *Registry        // nil: no commands
	Process  *process.Service // required
	Users    *account.Book    // required
	WorkDir  string           // what the working folders of commands are relative to; empty: the home of the user
}

// Service lists and runs commands. It is safe for concurrent use. The zero
// Service can only list its endpoints.
type Service struct{ opts Options }

// New returns a Service. It freezes the registry.
func New(o Options) *Service {
	if o.Registry == nil {
		o.Registry = NewRegistry()
	}
	o.Registry.Freeze()
	return &Service{o}
}

// List is the answer of GET /commands.
type List struct {
	Commands []Info `json:"commands"`
}

// Answer is the answer of POST /commands/{name}: of a function its result, of a
// program what it printed and how it ended.
type Answer struct {
	Result any `json:"result,omitempty" doc:"of a function, as JSON"`

	Stdout       *string `json:"stdout,omitempty" doc:"of a program; bytes that are not UTF-8 are replaced"`
	Stderr       *string `json:"stderr,omitempty"`
	StdoutBase64 []byte  `json:"stdout_base64,omitempty" doc:"the bytes, where they are not UTF-8"`
	StderrBase64 []byte  `json:"stderr_base64,omitempty"`
	Truncated    bool    `json:"truncated,omitempty" doc:"there was more output than an answer holds"`
	Exit
}

// Exit is how a program ended.
type Exit struct {
	ExitCode *int   `json:"exit_code,omitempty" doc:"-1 after a signal"`
	Status   string `json:"status,omitempty" doc:"in words, when it is not exit status 0"`
	Code     string `json:"code,omitempty" doc:"E3009 or E4004 where a limit of the sandbox ended it"`
}

// Endpoints lists the rows of the HTTP API.
func (s *Service) Endpoints() []endpoint.Endpoint {
	return []endpoint.Endpoint{
		{
			Name: "commands.list", Method: http.MethodGet, Path: "/commands",
			Summary:  "The named commands of the sandbox, without hidden ones.",
			Response: List{}, Handle: s.list,
		},
		{
			Name: "commands.run", Method: http.MethodPost, Path: "/commands/{name}",
			Summary: "Runs a named command. The body holds the arguments by name. With Accept: text/event-stream the output comes as events: start, stdout, stderr, exit; or result; or error. " +
				"A program is ended when the caller goes away.",
			Request: map[string]any(nil), Response: Answer{}, Produces: "text/event-stream", Handle: s.run,
			Errors: []endpoint.Error{
				{Status: http.StatusBadRequest, Code: "E3014", Summary: "an argument is missing, unknown or of a wrong type"},
				{Status: http.StatusNotFound, Code: "E3005", Summary: "no such command"},
				{Status: http.StatusRequestTimeout, Code: "E3001", Summary: "the timeout of the command passed"},
				{Status: http.StatusInternalServerError, Code: "E3015", Summary: "the function failed"},
			},
		},
	}
}

func (s *Service) list(w http.ResponseWriter, _ *http.Request) {
	endpoint.Answer(w, List{s.opts.Registry.List()})
}

func (s *Service) run(w http.ResponseWriter, r *http.Request) {
	e, err := s.opts.Registry.find(endpoint.Var(r, "name"))
	if err != nil {
		fault.HTTP(w, http.StatusNotFound, "E3005", message(err))
		return
	}
	var given map[string]json.RawMessage
	if !endpoint.Decode(w, r, &given) {
		return
	}
	values, err := bind(e.info.Args, given)
	if err != nil {
		refuse(w, err)
		return
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	if limit := e.limit(); limit > 0 {
		t := time.AfterFunc(limit, func() {
			cancel(errdefs.New("E3001", "", "the timeout of "+limit.String()+" passed"))
		})
		defer t.Stop()
	}
	var out sink = &collector{}
	if strings.Contains(r.Header.Get("Accept"), eventStream) {
		out = &events{w: w}
	}
	if e.call != nil {
		err = s.runFunction(ctx, e, values, out)
	} else {
		err = s.runProgram(ctx, e.program, values, out)
	}
	if err == nil {
		err = out.finish(w)
	}
	if err != nil {
		out.fail(w, err)
	}
}

// sink takes what a command brings.
type sink interface {
	started(pid int) error
	output(stdout, stderr []byte) error
	alive() error // nothing has come for a while
	result(v json.RawMessage) error
	ended(Exit) error
	finish(w http.ResponseWriter) error
	fail(w http.ResponseWriter, err error)
}

// runFunction calls a function of the program that is the runtime. One that does
// not return when its context ends is left behind.
func (s *Service) runFunction(ctx context.Context, e *entry, values map[string]any, out sink) error {
	ctx = context.WithValue(ctx, serviceKey{}, s)
	type outcome struct {
		result json.RawMessage
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		v, err := call(ctx, e, values)
		var result json.RawMessage
		if err == nil {
			result, err = json.Marshal(v)
		}
		done <- outcome{result, err}
	}()
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case o := <-done:
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if o.err != nil {
				if errdefs.CodeOf(o.err) == "E3014" {
					return o.err
				}
				return &errdefs.Error{Code: "E3015", Message: o.err.Error(), Err: o.err}
			}
			return out.result(o.result)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
			if err := out.alive(); err != nil {
				return err
			}
		}
	}
}

// call turns a panic into an error.
func call(ctx context.Context, e *entry, values map[string]any) (v any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return e.call(ctx, values)
}

func (s *Service) runProgram(ctx context.Context, p *program, values map[string]any, out sink) error {
	argv := p.arguments(values)
	cwd := p.cwd
	if cwd != "" && cwd[0] != '/' && cwd[0] != '~' && s.opts.WorkDir != "" {
		cwd = path.Join(s.opts.WorkDir, cwd)
	}
	return s.start(ctx, &Exec{Path: argv[0], Args: argv[1:], Dir: cwd, User: p.user, Env: p.env}, out)
}

// message is the text of err for the wire, without its code.
func message(err error) string {
	if e, ok := errors.AsType[*errdefs.Error](err); ok {
		return e.Message
	}
	_, _, text := fault.Of(err)
	return text
}

// refuse answers with why a command did not run or failed.
func refuse(w http.ResponseWriter, err error) {
	status, code, text := explain(err)
	fault.HTTP(w, status, code, text)
}

func explain(err error) (status int, code errdefs.Code, text string) {
	status, code, _ = fault.Of(err)
	switch code {
	case "E3001":
		status = http.StatusRequestTimeout
	case "E3014":
		status = http.StatusBadRequest
	}
	return status, code, message(err)
}

// collector is the sink of one answer.
type collector struct {
	answer         Answer
	stdout, stderr []byte
	program        bool
}

func (c *collector) started(int) error { c.program = true; return nil }
func (c *collector) alive() error      { return nil }

func (c *collector) output(stdout, stderr []byte) error {
	c.keep(&c.stdout, stdout)
	c.keep(&c.stderr, stderr)
	return nil
}

func (c *collector) keep(to *[]byte, b []byte) {
	if room := maxKept - len(*to); len(b) > room {
		b, c.answer.Truncated = b[:room], true
	}
	*to = append(*to, b...)
}

func (c *collector) result(v json.RawMessage) error { c.answer.Result = v; return nil }
func (c *collector) ended(e Exit) error             { c.answer.Exit = e; return nil }

func (c *collector) finish(w http.ResponseWriter) error {
	if c.program {
		c.answer.Stdout, c.answer.StdoutBase64 = printed(c.stdout)
		c.answer.Stderr, c.answer.StderrBase64 = printed(c.stderr)
	}
	endpoint.Answer(w, c.answer)
	return nil
}

func (c *collector) fail(w http.ResponseWriter, err error) { refuse(w, err) }

// printed is output as text, and as it is where text cannot hold it.
func printed(b []byte) (*string, []byte) {
	text := strings.ToValidUTF8(string(b), "\uFFFD")
	if utf8.Valid(b) {
		b = nil
	}
	return &text, b
}
