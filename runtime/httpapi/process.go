//go:build linux

package httpapi

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
)

// startErrors are the ways in which a command does not start.
var startErrors = []endpoint.Error{
	{Status: 400, Code: "E3011", Summary: "malformed"},
	{Status: 400, Code: "E3012", Summary: "the working folder cannot be used"},
	{Status: 403, Code: "E8021", Summary: "refused by the policy"},
	{Status: 404, Code: "E3007", Summary: "no such program"},
}

func (a *API) processRows() []endpoint.Endpoint {
	timeout := endpoint.Error{Status: 408, Code: "E3001", Summary: "killed because of its timeout"}
	gone := endpoint.Error{Status: 404, Code: "E3010", Summary: "no such process"}
	return []endpoint.Endpoint{
		{
			Name: "process.shell", Method: http.MethodPost, Path: "/shell",
			Summary: "Run a shell line to its end.",
			Request: ShellRequest{}, Response: RunResult{}, Errors: append([]endpoint.Error{timeout}, startErrors...), Handle: a.shell,
		},
		{
			Name: "process.shell_stream", Method: http.MethodPost, Path: "/shell/stream",
			Summary: "Run a shell line and follow it; it is killed when the client goes away.",
			Request: ShellRequest{}, Produces: endpoint.EventStream, Errors: startErrors, Handle: a.shellStream,
		},
		{
			Name: "process.exec", Method: http.MethodPost, Path: "/exec",
			Summary: "Run a program to its end.",
			Request: ExecRequest{}, Response: RunResult{}, Errors: append([]endpoint.Error{timeout}, startErrors...), Handle: a.exec,
		},
		{
			Name: "process.exec_stream", Method: http.MethodPost, Path: "/exec/stream",
			Summary: "Run a program and follow it; it is killed when the client goes away.",
			Request: ExecRequest{}, Produces: endpoint.EventStream, Errors: startErrors, Handle: a.execStream,
		},
		{
			Name: "process.start", Method: http.MethodPost, Path: "/process/start",
			Summary: "Start a shell line or a program that goes on by itself.",
			Request: StartRequest{}, Response: Started{}, Handle: a.start,
			Errors: append([]endpoint.Error{{Status: 429, Code: "E3000", Summary: "100 of them run"}}, startErrors...),
		},
		{
			Name: "process.list", Method: http.MethodGet, Path: "/process/list",
			Summary:  "List what runs and what has ended, whichever protocol started it.",
			Response: ProcessList{}, Handle: a.processList,
		},
		{
			Name: "process.get", Method: http.MethodGet, Path: "/process/{pid:[0-9]+}",
			Summary:  "Describe a process, its exit code included.",
			Response: Process{}, Errors: []endpoint.Error{gone}, Handle: a.processGet,
		},
		{
			Name: "process.connect", Method: http.MethodGet, Path: "/process/{pid:[0-9]+}/stream",
			Summary:  "Follow a process from the oldest output that is kept, or from an event on.",
			Query:    []endpoint.Param{{Name: "last_event_id", Type: "string", Summary: "as the header Last-Event-ID"}},
			Produces: endpoint.EventStream, Errors: []endpoint.Error{gone}, Handle: a.processStream,
		},
		{
			Name: "process.input", Method: http.MethodPost, Path: "/process/{pid:[0-9]+}/stdin",
			Summary: "Write to the standard input of a process, or type into its terminal, and end the input; answers once all is taken.",
			Request: InputRequest{}, Response: Written{}, Handle: a.processInput,
			Errors: []endpoint.Error{
				{Status: 400, Code: "E3011", Summary: "malformed; or the input of a terminal is to be ended"}, gone,
				{Status: 409, Code: "E3013", Summary: "it has no standard input, or that is closed"},
			},
		},
		{
			Name: "process.signal", Method: http.MethodPost, Path: "/process/{pid:[0-9]+}/signal",
			Summary: "Signal the group of a process; KILL ends all that it has started.",
			Request: SignalRequest{}, Response: Signalled{}, Handle: a.processSignal,
			Errors: []endpoint.Error{{Status: 400, Code: "E3011", Summary: "not a signal that can be sent"}, gone},
		},
	}
}

// StartRequest starts something in the background.
type StartRequest struct {
	Command string            `json:"command,omitempty" doc:"line for the shell of the sandbox; this or argv"`
	Argv    []string          `json:"argv,omitempty" doc:"program and arguments"`
	Cwd     string            `json:"cwd,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Stdin   bool              `json:"stdin,omitempty" doc:"it reads what POST /process/{pid}/stdin writes, until that is closed; otherwise there is nothing to read"`
}

// Started is the answer of POST /process/start.
type Started struct {
	Pid     int    `json:"pid"`
	Command string `json:"command"`
}

func (a *API) start(w http.ResponseWriter, r *http.Request) {
	var req StartRequest
	if !endpoint.Decode(w, r, &req) {
		return
	}
	argv, shown := req.Argv, strings.Join(req.Argv, " ")
	switch {
	case (req.Command == "") == (len(argv) == 0):
		endpoint.Refuse(w, "one of command and argv is required")
		return
	case req.Command != "":
		argv, shown = a.shellLine(req.Command), req.Command
	}
	// Counted before it exists, so that no two can be the last one.
	select {
	case a.started <- struct{}{}:
	default:
		fault.HTTP(w, http.StatusTooManyRequests, "E3000", fmt.Sprintf("%d processes that were started here run", maxStarted))
		return
	}
	free := func() { <-a.started }
	run, err := a.opts.Process.Begin(r.Context(), &pb.StartRequest{
		Process: &pb.ProcessConfig{Cmd: argv[0], Args: argv[1:], Cwd: proto.String(req.Cwd), Envs: req.Env}, Stdin: proto.Bool(req.Stdin),
	})
	if err != nil {
		free()
		fault.Answer(w, err)
		return
	}
	run.Close()
	a.spawn(func() {
		select {
		case <-run.Done():
		case <-a.ctx.Done():
		}
		free()
	})
	endpoint.Answer(w, Started{run.Pid(), shown})
}

// spawn runs f in a goroutine that Close waits for. It reports false, and does
// not, once that has begun.
func (a *API) spawn(f func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	a.wg.Go(f)
	return true
}

// Process is one process, as lists show it.
type Process struct {
	Pid       int        `json:"pid"`
	Command   string     `json:"command" doc:"program and arguments"`
	Argv      []string   `json:"argv" doc:"the same one by one, at most 4 KiB of it"`
	Cwd       string     `json:"cwd,omitempty" doc:"as it was asked for"`
	Tag       string     `json:"tag,omitempty"`
	Terminal  bool       `json:"terminal,omitempty"`
	State     string     `json:"state" enum:"running,exited"`
	StartedAt time.Time  `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	ExitCode  *int       `json:"exit_code,omitempty" doc:"of one that has exited; -1 when a signal ended it"`
	Status    string     `json:"status,omitempty" doc:"how it ended, in words"`
}

// ProcessList is the answer of GET /process/list.
type ProcessList struct {
	Processes []Process `json:"processes" doc:"those that run, then up to 1024 that have ended, the latest first"`
}

func processOf(i process.Info) Process {
	p := Process{
		Pid: i.Pid, Command: strings.Join(i.Argv, " "), Argv: slices.Clone(i.Argv), Cwd: i.Cwd, Tag: i.Tag, Terminal: i.Terminal,
		State: "running", StartedAt: i.Began.UTC(),
	}
	for n, s := range p.Argv {
		p.Argv[n] = toText([]byte(s))
	}
	if i.End != nil {
		code, at := int(i.End.GetExitCode()), i.Ended.UTC()
		p.State, p.ExitCode, p.EndedAt, p.Status = "exited", &code, &at, i.End.GetStatus()
		if i.End.GetError() != "" {
			p.Status = i.End.GetError()
		}
	}
	return p
}

func (a *API) processList(w http.ResponseWriter, _ *http.Request) {
	l := ProcessList{Processes: []Process{}}
	for _, i := range a.opts.Process.Processes() {
		l.Processes = append(l.Processes, processOf(i))
	}
	endpoint.Answer(w, l)
}

// pidOf reads the variable pid; when it reports false, it has answered.
func pidOf(w http.ResponseWriter, r *http.Request) (int, bool) {
	pid, err := strconv.ParseUint(endpoint.Var(r, "pid"), 10, 31)
	if err != nil {
		endpoint.Refuse(w, "pid is too large")
	}
	return int(pid), err == nil
}

func (a *API) processGet(w http.ResponseWriter, r *http.Request) {
	pid, ok := pidOf(w, r)
	if !ok {
		return
	}
	i, err := a.opts.Process.Process(pid)
	if err != nil {
		fault.Answer(w, err)
		return
	}
	endpoint.Answer(w, processOf(i))
}

// SignalRequest is a signal by number or name.
type SignalRequest struct {
	Signal any `json:"signal" required:"true" doc:"HUP, INT, QUIT, KILL, USR1, USR2, TERM, CONT, STOP, TSTP or WINCH, with or without SIG, or its number on Linux"`
}

// Signalled is the answer of POST /process/{pid}/signal.
type Signalled struct {
	Pid    int    `json:"pid"`
	Signal string `json:"signal"`
}

// signals can be sent; those that a program gets for its own faults cannot.
var signals = map[string]unix.Signal{
	"SIGHUP": unix.SIGHUP, "SIGINT": unix.SIGINT, "SIGQUIT": unix.SIGQUIT, "SIGKILL": unix.SIGKILL, "SIGUSR1": unix.SIGUSR1,
	"SIGUSR2": unix.SIGUSR2, "SIGTERM": unix.SIGTERM, "SIGCONT": unix.SIGCONT, "SIGSTOP": unix.SIGSTOP, "SIGTSTP": unix.SIGTSTP,
	"SIGWINCH": unix.SIGWINCH,
}

// signalOf finds a signal by name, with or without SIG, or number.
func signalOf(v any) (name string, sig unix.Signal, ok bool) {
	switch v := v.(type) {
	case string:
		name = strings.ToUpper(v)
		if !strings.HasPrefix(name, "SIG") {
			name = "SIG" + name
		}
	case float64:
		for n, s := range signals {
			if float64(s) == v {
				name = n
			}
		}
	}
	sig, ok = signals[name]
	return name, sig, ok
}

func (a *API) processSignal(w http.ResponseWriter, r *http.Request) {
	pid, ok := pidOf(w, r)
	if !ok {
		return
	}
	var req SignalRequest
	if !endpoint.Decode(w, r, &req) {
		return
	}
	name, sig, ok := signalOf(req.Signal)
	if !ok {
		endpoint.Refuse(w, "%v is not a signal that can be sent", req.Signal)
		return
	}
	run, err := a.opts.Process.Follow("signal", byPid(pid))
	if err == nil {
		run.Close()
		select {
		case <-run.Done():
			err = fault.New(connect.CodeNotFound, "E3010", "process with pid %d has ended", pid)
		default:
			if sig == unix.SIGKILL {
				err = run.Kill(r.Context())
			} else {
				err = run.Signal(sig, true)
			}
		}
	}
	if err != nil {
		fault.Answer(w, err)
		return
	}
	endpoint.Answer(w, Signalled{pid, name})
}
