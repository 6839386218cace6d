//go:build linux

package httpapi

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
)

// RunOptions are what every way to run something shares.
type RunOptions struct {
	Cwd     string            `json:"cwd,omitempty" doc:"working folder; without it the one of the sandbox"`
	Env     map[string]string `json:"env,omitempty" doc:"variables, over those of the sandbox"`
	Stdin   *string           `json:"stdin,omitempty" doc:"standard input; without it there is none"`
	Timeout *float64          `json:"timeout,omitempty" doc:"seconds until all that was started is killed, at most 86400" default:"300"`
}

// ShellRequest runs a shell line.
type ShellRequest struct {
	Command string `json:"command" required:"true" doc:"line for the shell of the sandbox"`
	RunOptions
}

// ExecRequest runs a program.
type ExecRequest struct {
	Argv []string `json:"argv" required:"true" doc:"program and arguments; no shell reads them"`
	RunOptions
}

// RunResult is how something ended and what it printed.
type RunResult struct {
	Pid          int    `json:"pid"`
	ExitCode     int    `json:"exit_code" doc:"-1 when a signal ended it"`
	Status       string `json:"status" doc:"how it ended, in words"`
	Stdout       string `json:"stdout" doc:"as text; bytes that are none are replaced"`
	Stderr       string `json:"stderr"`
	StdoutBase64 []byte `json:"stdout_base64,omitempty" doc:"the exact bytes, where they are not text"`
	StderrBase64 []byte `json:"stderr_base64,omitempty"`
	StdoutLost   int64  `json:"stdout_lost,omitempty" doc:"bytes left out after the first 4 MiB and before the last 4 MiB"`
	StderrLost   int64  `json:"stderr_lost,omitempty"`
	DurationMS   int64  `json:"duration_ms"`
}

// plan is a command that was asked for.
type plan struct {
	argv []string
	RunOptions
	limit time.Duration
}

// shellPlan reads a [ShellRequest]; when it reports false, it has answered.
func (a *API) shellPlan(w http.ResponseWriter, r *http.Request) (*plan, bool) {
	var req ShellRequest
	if !endpoint.Decode(w, r, &req) {
		return nil, false
	}
	if req.Command == "" {
		endpoint.Refuse(w, "command is missing")
		return nil, false
	}
	return checked(w, &plan{argv: a.shellLine(req.Command), RunOptions: req.RunOptions})
}

// shellLine is how a shell line is run.
func (a *API) shellLine(line string) []string {
	shell := a.opts.Shell
	if shell == "" {
		shell = "/bin/sh"
	}
	return []string{shell, "-c", line}
}

// execPlan is the same for an [ExecRequest].
func execPlan(w http.ResponseWriter, r *http.Request) (*plan, bool) {
	var req ExecRequest
	if !endpoint.Decode(w, r, &req) {
		return nil, false
	}
	if len(req.Argv) == 0 || req.Argv[0] == "" {
		endpoint.Refuse(w, "argv is missing")
		return nil, false
	}
	return checked(w, &plan{argv: req.Argv, RunOptions: req.RunOptions})
}

func checked(w http.ResponseWriter, p *plan) (*plan, bool) {
	p.limit = defaultRun
	if p.Timeout != nil {
		if !(*p.Timeout > 0 && *p.Timeout <= maxRun.Seconds()) {
			endpoint.Refuse(w, "timeout is not a number of seconds above 0 and up to %v", maxRun.Seconds())
			return nil, false
		}
		p.limit = time.Duration(*p.Timeout * float64(time.Second))
	}
	return p, true
}

// begin starts what p says.
func (a *API) begin(ctx context.Context, p *plan) (*process.Running, error) {
	return a.opts.Process.Begin(ctx, &pb.StartRequest{
		Process: &pb.ProcessConfig{Cmd: p.argv[0], Args: p.argv[1:], Cwd: proto.String(p.Cwd), Envs: p.Env},
		Stdin:   proto.Bool(p.Stdin != nil),
	})
}

// feed writes the standard input of p in the background; the function that it
// returns gives up and waits.
func (p *plan) feed(ctx context.Context, run *process.Running) (stop func()) {
	if p.Stdin == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		// A program need not read all that it is given.
		if run.Write(ctx, []byte(*p.Stdin)) == nil {
			_ = run.CloseInput(ctx)
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

func (a *API) shell(w http.ResponseWriter, r *http.Request) {
	if p, ok := a.shellPlan(w, r); ok {
		a.collect(w, r, p)
	}
}

func (a *API) exec(w http.ResponseWriter, r *http.Request) {
	if p, ok := execPlan(w, r); ok {
		a.collect(w, r, p)
	}
}

// collect runs p to its end and answers with what it printed.
func (a *API) collect(w http.ResponseWriter, r *http.Request, p *plan) {
	res, err := a.run(r.Context(), p)
	if err != nil {
		fault.Answer(w, err)
		return
	}
	endpoint.Answer(w, res)
}

// run runs p to its end. When ctx ends before, or the time of p, it kills all
// that was started; the error is E3001 for the time.
func (a *API) run(ctx context.Context, p *plan) (*RunResult, error) {
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	run, err := a.begin(ctx, p)
	if err != nil {
		return nil, err
	}
	defer run.Close()
	defer p.feed(limited, run)()
	var out, errs capture
	follow, stop := run.KillWith(limited)
	for {
		e, err := run.Next(follow)
		if err != nil || e.GetEnd() != nil {
			killed, kill := stop()
			if err != nil && !killed {
				kill = run.Kill(ctx)
			}
			if kill != nil {
				a.opts.Logger.Warn("process tree not ended", "pid", run.Pid(), "err", kill)
			}
			switch {
			case killed && ctx.Err() == nil:
				return nil, timedOut(p.limit)
			case killed:
				return nil, fault.New(connect.CodeCanceled, "", "%w", ctx.Err())
			case err != nil:
				return nil, err
			}
		}
		if end := e.GetEnd(); end != nil {
			res := &RunResult{
				Pid: run.Pid(), ExitCode: int(end.GetExitCode()), Status: end.GetStatus(), DurationMS: time.Since(began).Milliseconds(),
			}
			if end.GetError() != "" {
				res.Status = end.GetError()
			}
			res.Stdout, res.StdoutBase64, res.StdoutLost = out.result()
			res.Stderr, res.StderrBase64, res.StderrLost = errs.result()
			return res, nil
		}
		out.add(e.GetData().GetStdout())
		errs.add(e.GetData().GetStderr())
	}
}

// captured is how much of an output is kept of its beginning, and as much of its
// end, in bytes.
const captured = 4 << 20

// capture keeps the beginning and the end of an output.
type capture struct {
	head, tail []byte
	lost       int64
}

func (c *capture) add(b []byte) {
	if n := min(captured-len(c.head), len(b)); n > 0 {
		c.head = append(c.head, b[:n]...)
		b = b[n:]
	}
	c.tail = append(c.tail, b...)
	// Moved when there is twice as much, so that each byte is moved once.
	if len(c.tail) > 2*captured {
		c.trim()
	}
}

func (c *capture) trim() {
	if n := len(c.tail) - captured; n > 0 {
		c.lost += int64(n)
		c.tail = c.tail[:copy(c.tail, c.tail[n:])]
	}
}

func (c *capture) result() (text string, exact []byte, lost int64) {
	c.trim()
	all := append(c.head, c.tail...)
	text, exact = asText(all)
	return text, exact, c.lost
}

// asText is b as JSON can carry it, with the exact bytes where they are no text.
func asText(b []byte) (text string, exact []byte) {
	if utf8.Valid(b) {
		return string(b), nil
	}
	return toText(b), b
}

func toText(b []byte) string { return string([]rune(string(b))) }

func timedOut(d time.Duration) error {
	return fault.New(connect.CodeDeadlineExceeded, "E3001", "the command did not end within %s s; it was killed",
		strconv.FormatFloat(d.Seconds(), 'g', -1, 64))
}
