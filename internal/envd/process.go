package envd

import (
	"context"
	"encoding/base64"
	"math"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const (
	// ChannelHeader names the parked connection a started process is handed.
	ChannelHeader = "Sandbox-Channel"
	// disconnectHeader says what becomes of a process whose stream is lost.
	disconnectHeader = "Sandbox-On-Disconnect"
	// signalScopeHeader restricts a signal to one process of a tree.
	signalScopeHeader = "Sandbox-Signal-Scope"

	// abandonWait bounds how long a start whose caller left may take until the
	// process it made is killed.
	abandonWait = 10 * time.Second
)

// StartOptions say what to start. Path must be set.
type StartOptions struct {
	Path    string            // program, looked up by the server
	Args    []string          // without the program's name
	Env     map[string]string // on top of the sandbox's own
	Dir     string            // empty: the server's default
	User    string            // empty: the server's default
	Stdin   bool              // a pipe; else /dev/null
	Timeout time.Duration     // after which the server kills the process; zero: never
	Channel string            // id of a channel to hand over; empty: none
	Bound   bool              // the tree ends when the stream is lost, where the server can do that

	Terminal *Size // run in a terminal of this size; nil: with pipes
}

// Start starts a process and returns once it runs. When ctx ends before that,
// the process is killed as soon as it is known: nothing is left running. ctx
// does not bound the stream; [Stream.Close] ends it.
func (c *Client) Start(ctx context.Context, o *StartOptions) (*Stream, error) {
	const op = "start process"
	req := connect.NewRequest(&process.StartRequest{
		Process: &process.ProcessConfig{Cmd: o.Path, Args: o.Args, Envs: o.Env},
		Stdin:   &o.Stdin,
	})
	if o.Terminal != nil {
		req.Msg.Pty, req.Msg.Stdin = o.Terminal.message(), nil
	}
	if o.Dir != "" {
		req.Msg.Process.Cwd = &o.Dir
	}
	c.streamHeaders(req.Header(), o.User)
	if o.Timeout > 0 {
		req.Header().Set("Connect-Timeout-Ms", milliseconds(o.Timeout))
	}
	if o.Channel != "" {
		req.Header().Set(ChannelHeader, o.Channel)
	}
	if o.Bound {
		req.Header().Set(disconnectHeader, "kill")
	}
	return c.open(ctx, op, onStart, func(ctx context.Context) (receiver, error) {
		st, err := c.process.Start(ctx, req)
		if err != nil {
			return nil, err
		}
		return startReceiver{st}, nil
	})
}

// Attach follows a process that runs, or one that ended a short while ago. The
// server decides how much of its earlier output comes first.
func (c *Client) Attach(ctx context.Context, pid uint32) (*Stream, error) {
	const op = "attach to process"
	req := connect.NewRequest(&process.ConnectRequest{Process: selector(pid)})
	c.streamHeaders(req.Header(), "")
	return c.open(ctx, op, onProcess, func(ctx context.Context) (receiver, error) {
		st, err := c.process.Connect(ctx, req)
		if err != nil {
			return nil, err
		}
		return attachReceiver{st}, nil
	})
}

// SendInput writes to the standard input of pid and returns when the server has
// taken all of data. The process may be slow to read: only ctx bounds this.
func (c *Client) SendInput(ctx context.Context, pid uint32, data []byte) error {
	const op = "write to process"
	_, err := c.process.SendInput(ctx, connect.NewRequest(&process.SendInputRequest{
		Process: selector(pid),
		Input:   &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: data}},
	}))
	return wrap(ctx, op, onInput, err)
}

// CloseStdin lets the process read end of file. Repeating it is not an error.
func (c *Client) CloseStdin(ctx context.Context, pid uint32) error {
	const op = "close standard input"
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	_, err := c.process.CloseStdin(ctx, connect.NewRequest(&process.CloseStdinRequest{Process: selector(pid)}))
	return wrap(ctx, op, onInput, err)
}

// A Scope says how far a signal reaches.
type Scope int

const (
	Tree Scope = iota // the process and everything it started
	One               // the process alone
)

// Signal sends a signal. A process that is gone is E3010; a signal that the
// server cannot send is E8004.
func (c *Client) Signal(ctx context.Context, pid uint32, sig syscall.Signal, scope Scope) error {
	const op = "signal process"
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	req := connect.NewRequest(&process.SendSignalRequest{Process: selector(pid), Signal: process.Signal(sig)})
	if scope == One {
		req.Header().Set(signalScopeHeader, "process")
	}
	_, err := c.process.SendSignal(ctx, req)
	return wrap(ctx, op, onProcess, err)
}

// Process describes a running process.
type Process struct {
	Pid  uint32
	Path string
	Args []string // without the program's name
	Env  map[string]string
	Dir  string
}

// Processes lists the processes that were started through the server and live.
func (c *Client) Processes(ctx context.Context) ([]Process, error) {
	const op = "list processes"
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	res, err := c.process.List(ctx, connect.NewRequest(&process.ListRequest{}))
	if err != nil {
		return nil, wrap(ctx, op, onProcess, err)
	}
	out := make([]Process, 0, len(res.Msg.GetProcesses()))
	for _, p := range res.Msg.GetProcesses() {
		cfg := p.GetConfig()
		out = append(out, Process{Pid: p.GetPid(), Path: cfg.GetCmd(), Args: cfg.GetArgs(), Env: cfg.GetEnvs(), Dir: cfg.GetCwd()})
	}
	return out, nil
}

// streamHeaders sets what streams of a process carry.
func (c *Client) streamHeaders(h http.Header, user string) {
	if user != "" {
		h.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user+":")))
	}
	if c.keepAlive > 0 {
		secs := int64(math.Ceil(c.keepAlive.Seconds()))
		h.Set("Keepalive-Ping-Interval", strconv.FormatInt(secs, 10))
	}
}

func selector(pid uint32) *process.ProcessSelector {
	return &process.ProcessSelector{Selector: &process.ProcessSelector_Pid{Pid: pid}}
}

// milliseconds rounds d up; the protocol allows ten digits.
func milliseconds(d time.Duration) string {
	ms := (d + time.Millisecond - 1) / time.Millisecond
	return strconv.FormatInt(min(int64(ms), 9_999_999_999), 10)
}

// protocolError is an answer that breaks the order of events.
func protocolError(op, what string) error {
	return errdefs.New("E3006", op, what)
}
