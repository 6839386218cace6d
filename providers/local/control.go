//go:build linux

package local

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// The life-cycle protocol between a client and init, on ctl.sock: one JSON
// object per line, a request and its answer. It is private to this version of
// the provider; the data plane is not part of it.

// controlRequest is one request. Token is that of the sandbox.
type controlRequest struct {
	Token    string        `json:"token"`
	Op       string        `json:"op"`                 // one of the requests below
	Lifetime time.Duration `json:"lifetime,omitempty"` // from now, ns
}

// controlAnswer answers a request.
type controlAnswer struct {
	Error    string `json:"error,omitempty"` // one of the refusals below
	Deadline int64  `json:"deadline"`        // CLOCK_BOOTTIME, ns
	Paused   bool   `json:"paused,omitempty"`
	Detail   string `json:"detail,omitempty"` // of refusedFailed

	Usage     *insideUsage `json:"usage,omitempty"`     // answer to opUsage
	Listeners []string     `json:"listeners,omitempty"` // answer to opNetwork, whose descriptors come with it
}

// Requests of the protocol.
const (
	opInfo     = "info"
	opLifetime = "lifetime" // move the end
	opExtend   = "extend"   // move the end, but only to later
	opKill     = "kill"
	opPause    = "pause"
	opResume   = "resume" // with a lifetime also opExtend
	opUsage    = "usage"
	opNetwork  = "network"

	// See capture.
	opSnapshot  = "snapshot"
	opHibernate = "hibernate"
	opCommit    = "commit" // the files are kept
)

// Refusals of the protocol.
const (
	refusedToken  = "wrong token"
	refusedForm   = "malformed request"
	refusedEnded  = "ended"
	refusedPause  = "paused" // already
	refusedFailed = "failed"
)

const (
	controlLine  = 4 << 10          // bytes of a request or an answer
	controlIdle  = 10 * time.Second // for a request to come
	controlConns = 64               // at once
)

// errEnded says that init had decided to end before the request came.
var errEnded = errors.New("the sandbox is ending")

// controller carries out requests, in init.
type controller struct {
	token string
	life  *life
	pause suspender
	usage usageTaker
	log   *slog.Logger

	files   *os.File // what the sandbox has written
	layered bool
	request json.RawMessage // of the creation

	listeners []string      // names of those that are kept
	links     *net.UnixConn // takes links to the network of a guest; nil: no guest, or no list
}

// suspender pauses a sandbox; see pauser.
type suspender interface {
	pause() (changed bool, err error)
	resume() error
	paused() bool
	during(f func() error) error
}

// usageTaker measures a sandbox; nil: it could not.
type usageTaker interface{ take() *insideUsage }

// serveControl answers requests until the listener fails.
func serveControl(l net.Listener, ctl *controller) {
	slots := make(chan struct{}, controlConns)
	for {
		c, err := l.Accept()
		if err != nil {
			if pauseUnlessClosed(err) {
				continue
			}
			return
		}
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			defer c.Close()
			ctl.serve(c)
		}()
	}
}

func (ctl *controller) serve(c net.Conn) {
	r := bufio.NewReaderSize(c, controlLine)
	for {
		c.SetDeadline(time.Now().Add(controlIdle))
		line, err := r.ReadSlice('\n') // an error when the line is longer than the buffer
		if err != nil {
			return
		}
		if ctl.capture(c, line) {
			return
		}
		if ctl.wantsListeners(line) {
			if err := ctl.sendListeners(c); err != nil {
				return
			}
			continue
		}
		answer, end := ctl.answer(line)
		b, err := json.Marshal(answer)
		if err != nil {
			return
		}
		c.SetDeadline(time.Now().Add(controlIdle)) // a pause may have taken long
		if _, err := c.Write(append(b, '\n')); err != nil && !end {
			return
		}
		if end {
			ctl.life.finish(endKilled)
			return
		}
		if answer.Error == refusedToken || answer.Error == refusedForm {
			return
		}
	}
}

// wantsListeners reports whether a request is opNetwork, and may be.
func (ctl *controller) wantsListeners(line []byte) bool {
	var req controlRequest
	return json.Unmarshal(line, &req) == nil && req.Op == opNetwork && sameSecret(req.Token, ctl.token)
}

// answer carries out one request; end asks for the sandbox's end after the
// answer was sent.
func (ctl *controller) answer(line []byte) (_ controlAnswer, end bool) {
	var req controlRequest
	if json.Unmarshal(line, &req) != nil {
		return controlAnswer{Error: refusedForm}, false
	}
	if !sameSecret(req.Token, ctl.token) {
		return controlAnswer{Error: refusedToken}, false
	}
	if req.Op == opKill {
		return controlAnswer{}, true
	}
	a, err := ctl.act(req)
	switch {
	case err == nil:
	case errors.Is(err, errEnded):
		a.Error = refusedEnded
	case errors.Is(err, errForm):
		a.Error = refusedForm
	default:
		ctl.log.Warn("request failed", "op", req.Op, "err", err)
		a.Error, a.Detail = refusedFailed, clip(err.Error())
	}
	return a, false
}

// errHandedOver says that nothing more is to be read from a connection here.
var errHandedOver = errors.New("handed over")

// errForm says that a request is not one of ours.
var errForm = errors.New("malformed request")

func (ctl *controller) act(req controlRequest) (a controlAnswer, err error) {
	move := req.Lifetime != 0
	switch req.Op {
	case opInfo, opPause, opUsage:
		if move {
			return a, errForm
		}
	case opLifetime, opExtend:
		move = true
	case opResume:
	default:
		return a, errForm
	}
	if move {
		if req.Lifetime < minLifetime {
			return a, errForm
		}
		a.Deadline, err = ctl.life.move(req.Lifetime, req.Op != opLifetime)
	} else {
		a.Deadline, err = ctl.life.end()
	}
	if err != nil {
		return a, err
	}
	switch req.Op {
	case opPause:
		changed, err := ctl.pause.pause()
		if err != nil {
			return a, err
		}
		if !changed {
			a.Error = refusedPause
		}
	case opResume:
		if err := ctl.pause.resume(); err != nil {
			return a, err
		}
	case opUsage:
		a.Usage = ctl.usage.take()
	}
	a.Paused = ctl.pause.paused()
	return a, nil
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
	case refusedPause:
		return a, &errdefs.Error{Code: "E2024", Op: "pause sandbox", Message: "sandbox " + e.id + " is paused already"}
	case refusedFailed:
		return a, &errdefs.Error{Code: "E8000", Op: req.Op + " sandbox", Message: clip(a.Detail), Suggestion: "try again, or kill it"}
	}
	return a, &errdefs.Error{Code: "E3006", Op: "control sandbox", Message: "init refused the request: " + a.Error,
		Suggestion: "was the sandbox made by another version of the program?"}
}

// pauseUnlessClosed says whether to go on after an error of a listener, and waits a
// moment then: this process may be out of descriptors.
func pauseUnlessClosed(err error) bool {
	if errors.Is(err, net.ErrClosed) {
		return false
	}
	time.Sleep(10 * time.Millisecond)
	return true
}
