package sandboxfn

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// DefaultCodeTimeout is the limit of a cell for which CodeOptions name none.
const DefaultCodeTimeout = 5 * time.Minute

// maxCodeLine bounds one line of an answer; results above 10 MiB are left out
// by the sandbox.
const maxCodeLine = 256 << 20

// CodeOptions say how a cell runs. The zero value is Python without callbacks.
type CodeOptions struct {
	// Language of the default context: python, javascript, typescript, bash, or
	// what the template adds. Empty: python. It is not for [CodeContext.Run].
	Language string

	// Env holds variables for this cell; they are undone after it.
	Env map[string]string

	// Timeout is the limit of the cell. After it the cell is interrupted, and
	// Execution.Error is named TimeoutError. Zero: DefaultCodeTimeout;
	// negative: none. Interpreters that are not ours are interrupted by the end
	// of the connection, and the error is [ErrCommandTimeout].
	Timeout time.Duration

	// The callbacks get what the cell tells while it runs, from one goroutine.
	OnStdout, OnStderr func(text string)
	OnResult           func(*CodeResult)
}

// Execution is what a cell did. Code that raised has an Error here; it is no Go
// error.
type Execution struct {
	Results []CodeResult
	Stdout  []string // pieces as they came
	Stderr  []string
	Error   *ExecutionError // nil: nothing was raised
	Count   int             // of cells in the context, this one included; zero: unknown
	// Restarted says that the context was new: its process had died before.
	Restarted bool
	// Via is the way that was taken: "runtime", the interpreter of our own
	// server, "port", one that serves port 49999, or "process", an interpreter
	// that this handle has started in a sandbox that offers neither.
	Via string

	ended bool // the last line was there
}

// Text is the text of the main result, "" without one.
func (e *Execution) Text() string {
	for _, r := range e.Results {
		if r.Main {
			return r.Text
		}
	}
	return ""
}

// ExecutionError is what a cell raised.
type ExecutionError struct {
	Name      string `json:"name"` // of its class; ContextDied and TimeoutError are the sandbox's
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

// Error implements error.
func (e *ExecutionError) Error() string { return e.Name + ": " + e.Value }

// CodeResult is one value that a cell has shown, in all its forms. Those that it does
// not have are empty.
type CodeResult struct {
	Main       bool            `json:"is_main_result"` // the value of the last expression
	Text       string          `json:"text"`
	HTML       string          `json:"html"`
	Markdown   string          `json:"markdown"`
	SVG        string          `json:"svg"`
	PNGBase64  string          `json:"png"`
	JPEGBase64 string          `json:"jpeg"`
	PDFBase64  string          `json:"pdf"`
	LaTeX      string          `json:"latex"`
	JSON       json.RawMessage `json:"json"`
	JavaScript string          `json:"javascript"`
	Data       json.RawMessage `json:"data"`  // columns of a data frame
	Chart      json.RawMessage `json:"chart"` // titles, labels and points of a plot
	Extra      json.RawMessage `json:"extra"` // other MIME types
}

// PNG is the picture, nil without one.
func (r *CodeResult) PNG() ([]byte, error) {
	if r.PNGBase64 == "" {
		return nil, nil
	}
	b, err := base64.StdEncoding.DecodeString(r.PNGBase64)
	if err != nil {
		return nil, errdefs.Wrap("E3006", "decode picture", "", err)
	}
	return b, nil
}

// Formats lists the forms that the result has, by their names on the wire.
func (r *CodeResult) Formats() []string {
	var out []string
	for name, has := range map[string]bool{
		"text": r.Text != "", "html": r.HTML != "", "markdown": r.Markdown != "", "svg": r.SVG != "", "png": r.PNGBase64 != "",
		"jpeg": r.JPEGBase64 != "", "pdf": r.PDFBase64 != "", "latex": r.LaTeX != "", "json": r.JSON != nil,
		"javascript": r.JavaScript != "", "data": r.Data != nil, "chart": r.Chart != nil, "extra": r.Extra != nil,
	} {
		if has {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// CodeContext keeps the state of one interpreter in a sandbox. It is safe for
// concurrent use; its cells run one after the other.
type CodeContext struct {
	ID       string
	Language string
	Dir      string // working directory at the start; empty: not started yet

	sb     *Sandbox
	driven *drivenContext // nil: the sandbox has it
}

// CodeContextOptions say how a context starts.
type CodeContextOptions struct {
	Dir string // working directory; empty: the home of the user
}

// RunCode runs code in the default context of its language, which is made when it
// is first needed. Ending ctx interrupts the cell. A nil opts is the zero
// CodeOptions. Errors: [ErrInterpreterMissing] where the language's program is
// not installed, E3011 for an unknown language, [ErrNotSupported] where the
// sandbox has no code interpreter and none can be started in it.
func (sb *Sandbox) RunCode(ctx context.Context, code string, opts *CodeOptions) (*Execution, error) {
	return sb.runCode(ctx, code, nil, opts)
}

// Code makes a context and starts its interpreter; an empty language is Python.
// Errors are those of [Sandbox.RunCode].
func (sb *Sandbox) Code(ctx context.Context, language string, opts *CodeContextOptions) (*CodeContext, error) {
	body := map[string]string{}
	if language != "" {
		body["language"] = language
	}
	if opts != nil && opts.Dir != "" {
		body["cwd"] = opts.Dir
	}
	const op = "make code context"
	if driven, err := sb.drives(ctx, op); err != nil {
		return nil, err
	} else if driven {
		leave, err := sb.enter()
		if err != nil {
			return nil, err
		}
		defer leave()
		c, err := sb.makeDriven(ctx, op, language, body["cwd"])
		if err != nil {
			return nil, err
		}
		return c.public(sb), nil
	}
	var c contextWire
	if err := sb.askInterpreter(ctx, op, http.MethodPost, "/contexts", body, &c); err != nil {
		return nil, err
	}
	return &CodeContext{ID: c.ID, Language: c.Language, Dir: c.Dir, sb: sb}, nil
}

type contextWire struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Dir      string `json:"cwd"`
}

// CodeContexts lists the contexts of the sandbox, the default ones included; where
// the sandbox has no interpreter, those of this handle. An error ends the sequence.
func (sb *Sandbox) CodeContexts(ctx context.Context) iter.Seq2[*CodeContext, error] {
	return func(yield func(*CodeContext, error) bool) {
		driven, err := sb.drives(ctx, "list code contexts")
		if err != nil {
			yield(nil, err)
			return
		}
		if driven {
			for _, c := range sb.listDriven() {
				if !yield(c.public(sb), nil) {
					return
				}
			}
			return
		}
		var list []contextWire
		if err := sb.askInterpreter(ctx, "list code contexts", http.MethodGet, "/contexts", struct{}{}, &list); err != nil {
			yield(nil, err)
			return
		}
		for _, c := range list {
			if !yield(&CodeContext{ID: c.ID, Language: c.Language, Dir: c.Dir, sb: sb}, nil) {
				return
			}
		}
	}
}

// Run runs a cell in the context. Options.Language must be empty. A context that
// was removed is [ErrProcessGone]. Other errors are those of [Sandbox.RunCode].
func (c *CodeContext) Run(ctx context.Context, code string, opts *CodeOptions) (*Execution, error) {
	if opts != nil && opts.Language != "" {
		return nil, errdefs.New("E3011", "run code", "a context has its language already")
	}
	return c.sb.runCode(ctx, code, c, opts)
}

// Restart gives the context a new process; its state is gone, and a cell that runs
// fails.
func (c *CodeContext) Restart(ctx context.Context) error {
	if c.driven != nil {
		leave, err := c.sb.enter()
		if err != nil {
			return err
		}
		defer leave()
		return c.sb.restartDriven(ctx, "restart code context", c.driven)
	}
	return c.sb.askInterpreter(ctx, "restart code context", http.MethodPost, "/contexts/"+url.PathEscape(c.ID)+"/restart", struct{}{}, nil)
}

// Close ends the context and what it runs. One that is gone is not an error.
func (c *CodeContext) Close() error {
	if c.driven != nil {
		if leave, err := c.sb.enter(); err == nil { // else it ended with the handle
			c.sb.dropDriven(c.driven)
			leave()
		}
		return nil
	}
	err := c.sb.askInterpreter(c.sb.life, "end code context", http.MethodDelete, "/contexts/"+url.PathEscape(c.ID), struct{}{}, nil)
	if errors.Is(err, ErrProcessGone) {
		return nil
	}
	return err
}

// drives reports whether this handle starts interpreters itself: nothing serves
// port 49999, and the runtime is not ours.
func (sb *Sandbox) drives(ctx context.Context, op string) (bool, error) {
	_, via, err := sb.way(ctx, op)
	return via == "process", err
}

// way is how the code interpreter is reached, and its port where that has a way of
// its own. What was found is kept: contexts are on one way only.
func (sb *Sandbox) way(ctx context.Context, op string) (ep providers.Endpoint, via string, err error) {
	if err := sb.usable(); err != nil {
		return ep, "", err
	}
	if sb.channels { // the connection leads to our runtime itself
		return ep, "runtime", nil
	}
	sb.codes.mu.Lock()
	known := sb.codes.via
	sb.codes.mu.Unlock()
	if known == "process" {
		return ep, known, nil
	}
	f, ferr := sb.envd.Features(ctx)
	ep, err = sb.portEndpoint(ctx, op, 49999)
	switch {
	case ferr == nil && f.Code && (err == nil || errors.Is(err, ErrNotSupported)):
		return ep, "runtime", nil // without an endpoint, over the connection of the runtime
	case err == nil && (known != "" || ferr != nil || f != envd.Features{}):
		return ep, "port", nil
	case err == nil:
		err = sb.probeInterpreter(ctx, op, ep)
	case !errors.Is(err, ErrNotSupported) || ferr != nil || f != envd.Features{}:
		return ep, "", sb.explain(ctx, err)
	}
	via = "port"
	if errors.Is(err, ErrNotSupported) || errors.Is(err, ErrProcessGone) || errdefs.CodeOf(err) == "E5001" {
		via, err = "process", nil
	}
	if err != nil {
		return ep, "", sb.explain(ctx, err)
	}
	sb.codes.mu.Lock()
	defer sb.codes.mu.Unlock()
	if sb.codes.via == "" {
		sb.codes.via = via
	}
	return ep, sb.codes.via, nil
}

// probeInterpreter asks whether something serves port 49999. An error of code
// E3010, E8004 or E5001 says that nothing does.
func (sb *Sandbox) probeInterpreter(ctx context.Context, op string, ep providers.Endpoint) error {
	c, err := sb.envd.Interpreter(ep.URL, ep.Headers)
	if err != nil {
		return err
	}
	defer c.Close()
	answer, err := c.Ask(ctx, op, http.MethodGet, "/health", struct{}{}, nil, false)
	if err != nil {
		return err
	}
	return answer.Close()
}

// interpreter is a client of the code interpreter, to be closed by the caller; nil
// for the way "process".
func (sb *Sandbox) interpreter(ctx context.Context, op string) (c *envd.Client, via string, err error) {
	ep, via, err := sb.way(ctx, op)
	if err != nil || via == "process" {
		return nil, via, err
	}
	c, err = sb.envd.Interpreter(ep.URL, ep.Headers)
	return c, via, err
}

// askInterpreter sends a short request and decodes the answer into v.
func (sb *Sandbox) askInterpreter(ctx context.Context, op, method, path string, body, v any) error {
	leave, err := sb.enter()
	if err != nil {
		return err
	}
	defer leave()
	c, via, err := sb.interpreter(ctx, op)
	switch {
	case err != nil:
		return err
	case via == "process": // the context is of another time, or another handle
		return errdefs.New("E3010", op, "the sandbox has no code interpreter")
	}
	defer c.Close()
	answer, err := c.Ask(ctx, op, method, path, body, nil, false)
	if err != nil {
		return sb.explain(ctx, err)
	}
	defer answer.Close()
	if v == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(answer, 1<<20))
		return err
	}
	if err := json.NewDecoder(answer).Decode(v); err != nil {
		return errdefs.Wrap("E3006", op, "malformed answer", err)
	}
	return nil
}

func (sb *Sandbox) runCode(ctx context.Context, code string, in *CodeContext, opts *CodeOptions) (*Execution, error) {
	const op = "run code"
	var o CodeOptions
	if opts != nil {
		o = *opts
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultCodeTimeout
	}
	if in != nil && in.driven != nil {
		if !in.driven.enter() {
			return nil, closedContext(op)
		}
		return sb.runDriven(ctx, op, in.driven, code, &o)
	}
	leave, err := sb.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	c, via, err := sb.interpreter(ctx, op)
	if err != nil {
		return nil, err
	}
	if via == "process" {
		id := ""
		if in != nil {
			id = in.ID
		}
		d, err := sb.driven(op, id, o.Language)
		if err != nil {
			return nil, err
		}
		return sb.runDriven(ctx, op, d, code, &o)
	}
	defer c.Close()
	body := map[string]any{"code": code}
	switch {
	case in != nil:
		body["context_id"] = in.ID
	case o.Language != "":
		body["language"] = o.Language
	}
	if len(o.Env) > 0 {
		body["env_vars"] = maps.Clone(o.Env)
	}
	headers := http.Header{"Sandbox-Code-Events": {"context_restarted"}}
	if o.Timeout > 0 {
		headers.Set("Sandbox-Cell-Timeout", strconv.FormatFloat(o.Timeout.Seconds(), 'f', -1, 64))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(sb.life, cancel)() // Close ends the cell
	if via != "runtime" && o.Timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, o.Timeout, errdefs.New("E3001", op, "the cell took longer than "+o.Timeout.String()))
		defer stop()
	}
	e := &Execution{Via: via}
	answer, err := c.Ask(ctx, op, http.MethodPost, "/execute", body, headers, true)
	if err == nil {
		defer answer.Close()
		err = e.read(answer, &o)
	}
	if err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, ErrCommandTimeout) {
			return nil, cause
		}
		return nil, sb.explain(ctx, err)
	}
	return e, nil
}

// codeLine is a line of an answer.
type codeLine struct {
	Type  string `json:"type"`
	Count int    `json:"execution_count"`
	Text  string `json:"text"`
	ExecutionError
}

// read reads the lines of an answer to the last one, which must be there.
func (e *Execution) read(r io.Reader, o *CodeOptions) error {
	const op = "run code"
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxCodeLine)
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		if err := e.take(lines.Bytes(), o); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if !e.ended {
		return errdefs.New("E5003", op, "the answer ended before the cell did")
	}
	return nil
}

// take takes one line.
func (e *Execution) take(line []byte, o *CodeOptions) error {
	const op = "run code"
	var l codeLine
	if err := json.Unmarshal(line, &l); err != nil {
		return errdefs.Wrap("E3006", op, "malformed answer", err)
	}
	switch l.Type {
	case "number_of_executions":
		e.Count = l.Count
	case "stdout":
		e.Stdout = append(e.Stdout, l.Text)
		if o.OnStdout != nil {
			o.OnStdout(l.Text)
		}
	case "stderr":
		e.Stderr = append(e.Stderr, l.Text)
		if o.OnStderr != nil {
			o.OnStderr(l.Text)
		}
	case "error":
		e.Error = &l.ExecutionError
	case "context_restarted":
		e.Restarted = true
	case "end_of_execution":
		e.ended = true
	case "result":
		var res CodeResult
		if err := json.Unmarshal(line, &res); err != nil {
			return errdefs.Wrap("E3006", op, "malformed result", err)
		}
		e.Results = append(e.Results, res)
		if o.OnResult != nil {
			o.OnResult(&res)
		}
	}
	return nil
}
