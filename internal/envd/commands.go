package envd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// NamedCommand describes a command that a sandbox offers by name.
type NamedCommand struct {
	Name        string     `json:"name"`
	Description string     `json:"description"`
	Args        []NamedArg `json:"args"`
}

// NamedArg is one argument of a NamedCommand.
type NamedArg struct {
	Name        string `json:"name"`
	Type        string `json:"type"`
	Required    bool   `json:"required"`
	Default     any    `json:"default"`
	Description string `json:"description"`
}

// NamedEvent is one thing that a named command brings: exactly one field is set.
type NamedEvent struct {
	Pid            uint32
	Stdout, Stderr []byte
	Result         json.RawMessage // of a function; nothing follows
	End            *End            // of a program; nothing follows
}

const (
	// maxCommands bounds a list of commands, in bytes.
	maxCommands = 16 << 20
	// maxNamedEvent bounds one event: results can be long.
	maxNamedEvent = 64 << 20
	// namedSilence is how long a stream may be silent: servers show life every 15
	// seconds.
	namedSilence = time.Minute
)

// Commands lists the named commands of the sandbox. Servers without such an API
// are E8004.
func (c *Client) Commands(ctx context.Context) ([]NamedCommand, error) {
	const op = "list commands"
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/commands", nil)
	if err != nil {
		return nil, errdefs.Wrap("E5001", op, "", err)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, wrapTransport(ctx, op, err)
	}
	defer drain(res.Body)
	if res.StatusCode != http.StatusOK {
		return nil, namedError(op, res)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxCommands))
	if err != nil {
		return nil, wrapTransport(ctx, op, err)
	}
	var list struct {
		Commands *[]NamedCommand `json:"commands"`
	}
	if json.Unmarshal(body, &list) != nil || list.Commands == nil {
		return nil, errdefs.New("E8004", op, noCommands)
	}
	return *list.Commands, nil
}

const noCommands = "the sandbox's server has no named commands"

// namedError is [httpError], but that a path which is not there means that the
// server is not ours, or an older one.
func namedError(op string, res *http.Response) error {
	if _, ours := hinted(res.Header); !ours {
		switch res.StatusCode {
		case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
			return errdefs.New("E8004", op, noCommands)
		case http.StatusBadRequest, http.StatusInternalServerError:
			return errdefs.New("E3000", op, "status "+res.Status)
		}
	}
	return httpError(op, res)
}

// namedCommand is what names of commands are like. Others could be another path.
var namedCommand = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)
})

// NamedStream is a named command that runs. It is for one goroutine.
type NamedStream struct {
	op     string
	ctx    context.Context
	cancel context.CancelCauseFunc
	body   io.ReadCloser
	lines  *bufio.Reader
	alarm  *time.Timer // ends ctx after a silence
	ended  bool
}

// RunCommand starts a named command; args is a JSON object. The command ends when
// ctx does, or the stream is closed before its end. Errors: E3005 for a command
// that is not there, E3014 for arguments, E8004 for a server without such an API.
func (c *Client) RunCommand(ctx context.Context, name string, args []byte) (*NamedStream, error) {
	op := "run command " + name
	if !namedCommand().MatchString(name) {
		return nil, errdefs.New("E3005", "run command", fmt.Sprintf("%q is not the name of a command", cut(name)))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	s, err := c.runCommand(ctx, cancel, op, name, args)
	if err != nil {
		cancel(context.Canceled)
		return nil, err
	}
	return s, nil
}

func (c *Client) runCommand(ctx context.Context, cancel context.CancelCauseFunc, op, name string, args []byte) (*NamedStream, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/commands/"+url.PathEscape(name), bytes.NewReader(args))
	if err != nil {
		return nil, errdefs.Wrap("E5001", op, "", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	if c.timeout > 0 {
		t := time.AfterFunc(c.timeout, func() { cancel(&requestTimeout{after: c.timeout}) })
		defer t.Stop()
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, wrapTransport(ctx, op, err)
	}
	if res.StatusCode != http.StatusOK {
		defer drain(res.Body)
		return nil, namedError(op, res)
	}
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		res.Body.Close()
		return nil, errdefs.New("E8004", op, noCommands)
	}
	s := &NamedStream{op: op, ctx: ctx, cancel: cancel, body: res.Body, lines: bufio.NewReaderSize(res.Body, 32<<10)}
	s.alarm = time.AfterFunc(namedSilence, func() { cancel(errSilent) })
	return s, nil
}

// Close ends the command, unless it has ended, and frees the connection.
func (s *NamedStream) Close() {
	s.alarm.Stop()
	if s.ended {
		drain(s.body)
	}
	s.cancel(context.Canceled)
	s.body.Close()
}

// Next returns the next event. A command that failed is an error with its code;
// a stream that stops without an end is E5003.
func (s *NamedStream) Next() (*NamedEvent, error) {
	for {
		name, data, err := s.event()
		if err != nil {
			if s.ctx.Err() == nil && errors.Is(err, io.EOF) {
				return nil, errdefs.New("E5003", s.op, "the stream ended without saying how the command ended")
			}
			if _, ok := err.(*errdefs.Error); ok {
				return nil, err
			}
			return nil, wrapTransport(s.ctx, s.op, err)
		}
		ev, err := s.read(name, data)
		if ev != nil || err != nil {
			return ev, err
		}
	}
}

// namedData is what the data of events can hold.
type namedData struct {
	Pid      uint32          `json:"pid"`
	Data     *string         `json:"data"`
	Base64   []byte          `json:"data_base64"`
	Result   json.RawMessage `json:"result"`
	ExitCode *int            `json:"exit_code"`
	Status   string          `json:"status"`
	Code     errdefs.Code    `json:"code"`
}

// read returns nil for an event that it does not know.
func (s *NamedStream) read(name string, data []byte) (*NamedEvent, error) {
	if name == "error" {
		var e struct {
			Code    errdefs.Code `json:"code"`
			Message string       `json:"error"`
		}
		if json.Unmarshal(data, &e) != nil {
			return nil, protocolError(s.op, "an event of the server is malformed")
		}
		s.ended = true
		code, ok := hinted(http.Header{ErrorCodeHeader: {string(e.Code)}})
		if !ok {
			code = "E3000"
		}
		return nil, coded(code, s.op, cut(e.Message))
	}
	var d namedData
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, protocolError(s.op, "an event of the server is malformed")
	}
	out := d.Base64
	if out == nil && d.Data != nil {
		out = []byte(*d.Data)
	}
	switch name {
	case "start":
		return &NamedEvent{Pid: d.Pid}, nil
	case "stdout":
		return &NamedEvent{Stdout: out}, nil
	case "stderr":
		return &NamedEvent{Stderr: out}, nil
	case "result":
		s.ended = true
		if d.Result == nil {
			d.Result = json.RawMessage("null")
		}
		return &NamedEvent{Result: d.Result}, nil
	case "exit":
		if d.ExitCode == nil {
			return nil, protocolError(s.op, "the server does not say how the command ended")
		}
		s.ended = true
		end := &End{
			ExitCode: *d.ExitCode, Exited: *d.ExitCode >= 0, Status: cut(d.Status),
			MemoryLimit: d.Code == "E3009", NoSpace: d.Code == "E4004",
		}
		if d.Code == "E3001" {
			end.TimeLimit = remark(end.Status)
		}
		return &NamedEvent{End: end}, nil
	}
	return nil, nil
}

// event reads one event; comments, which show life, are skipped.
func (s *NamedStream) event() (name string, data []byte, err error) {
	for size := 0; ; {
		line, err := s.line(maxNamedEvent - size)
		if err != nil {
			return "", nil, err
		}
		s.alarm.Reset(namedSilence)
		size += len(line)
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch {
		case len(line) == 0 && data != nil:
			return name, data, nil
		case len(line) == 0:
			name, size = "", 0
		case string(field) == "event":
			name = string(value)
		case string(field) == "data":
			if data != nil {
				data = append(data, '\n')
			}
			data = append(data, value...)
		}
	}
}

// line reads a line of at most limit bytes, without its end.
func (s *NamedStream) line(limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := s.lines.ReadSlice('\n')
		if len(line)+len(part) > limit {
			return nil, protocolError(s.op, "an event of the server is too long")
		}
		line = append(line, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return bytes.TrimRight(line, "\r\n"), nil
	}
}
