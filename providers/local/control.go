//go:build linux

package local

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// The life-cycle protocol between a client and init, on ctl.sock: one JSON
// object per line, a request and its answer. It is private to this version of
// the provider; the data plane is not part of it.

// controlRequest is one request. Token is that of the sandbox.
type controlRequest struct {
	Token    string        `json:"token"`
	Op       string        `json:"op"`                 // opInfo, opLifetime, opExtend or opKill
	Lifetime time.Duration `json:"lifetime,omitempty"` // from now, ns
}

// controlAnswer answers a request.
type controlAnswer struct {
	Error    string `json:"error,omitempty"` // one of the refusals below
	Deadline int64  `json:"deadline"`        // CLOCK_BOOTTIME, ns
}

// Requests of the protocol.
const (
	opInfo     = "info"
	opLifetime = "lifetime" // move the end
	opExtend   = "extend"   // move the end, but only to later
	opKill     = "kill"
)

// Refusals of the protocol.
const (
	refusedToken = "wrong token"
	refusedForm  = "malformed request"
	refusedEnded = "ended"
)

const (
	controlLine  = 4 << 10          // bytes of a request or an answer
	controlIdle  = 10 * time.Second // for a request to come
	controlConns = 64               // at once
)

// errEnded says that init had decided to end before the request came.
var errEnded = errors.New("the sandbox is ending")

// serveControl answers requests until the listener fails.
func serveControl(l net.Listener, token string, life *life) {
	slots := make(chan struct{}, controlConns)
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // out of descriptors, perhaps for a moment
			continue
		}
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			defer c.Close()
			serveControlConn(c, token, life)
		}()
	}
}

func serveControlConn(c net.Conn, token string, life *life) {
	r := bufio.NewReaderSize(c, controlLine)
	for {
		c.SetDeadline(time.Now().Add(controlIdle))
		line, err := r.ReadSlice('\n') // an error when the line is longer than the buffer
		if err != nil {
			return
		}
		answer, end := answerControl(line, token, life)
		b, err := json.Marshal(answer)
		if err != nil {
			return
		}
		if _, err := c.Write(append(b, '\n')); err != nil && !end {
			return
		}
		if end {
			life.finish(endKilled)
			return
		}
		if answer.Error == refusedToken || answer.Error == refusedForm {
			return
		}
	}
}

// answerControl carries out one request; end asks for the sandbox's end after
// the answer was sent.
func answerControl(line []byte, token string, life *life) (_ controlAnswer, end bool) {
	var req controlRequest
	if json.Unmarshal(line, &req) != nil {
		return controlAnswer{Error: refusedForm}, false
	}
	if !sameSecret(req.Token, token) {
		return controlAnswer{Error: refusedToken}, false
	}
	var deadline int64
	var err error
	switch req.Op {
	case opInfo:
		deadline, err = life.end()
	case opLifetime, opExtend:
		if req.Lifetime < minLifetime {
			return controlAnswer{Error: refusedForm}, false
		}
		deadline, err = life.move(req.Lifetime, req.Op == opExtend)
	case opKill:
		return controlAnswer{}, true
	default:
		return controlAnswer{Error: refusedForm}, false
	}
	if err != nil {
		return controlAnswer{Error: refusedEnded}, false
	}
	return controlAnswer{Deadline: deadline}, false
}

// control sends one request to the init of e. errEnded, or an error of
// connecting, means that it has ended or is about to.
func (e *entry) control(ctx context.Context, req controlRequest) (controlAnswer, error) {
	token, err := e.token()
	if err != nil {
		return controlAnswer{}, err
	}
	req.Token = token.Reveal()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", e.dir.address(fileControl))
	if err != nil {
		return controlAnswer{}, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })()
	line, err := json.Marshal(req)
	if err != nil {
		return controlAnswer{}, err
	}
	if _, err := c.Write(append(line, '\n')); err != nil {
		return controlAnswer{}, err
	}
	reply, err := bufio.NewReader(io.LimitReader(c, controlLine)).ReadBytes('\n')
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return controlAnswer{}, err
	}
	var a controlAnswer
	if err := json.Unmarshal(reply, &a); err != nil {
		return controlAnswer{}, fmt.Errorf("answer of init: %w", err)
	}
	switch a.Error {
	case "":
		return a, nil
	case refusedEnded:
		return a, errEnded
	}
	return a, &errdefs.Error{Code: "E3006", Op: "control sandbox", Message: "init refused the request: " + a.Error,
		Suggestion: "was the sandbox made by another version of the program?"}
}
