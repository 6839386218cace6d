//go:build linux

package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
)

// SocketProtocol is the subprotocol of terminals. A browser, which has to offer
// the token as another one, gets this one confirmed.
const SocketProtocol = "sandbox-terminal"

const (
	pingEvery   = 30 * time.Second // of a WebSocket
	pingTimeout = 30 * time.Second // until the client has answered
	sendTimeout = 60 * time.Second // until the client has taken a message
	lastWords   = time.Second      // for the end of a program when the API ends
	inputQueue  = 8                // messages that a program need not have read
)

// terminalSignals are what a terminal can be sent, to the job in the foreground.
var terminalSignals = map[string]unix.Signal{
	"SIGINT": unix.SIGINT, "SIGTERM": unix.SIGTERM, "SIGKILL": unix.SIGKILL, "SIGHUP": unix.SIGHUP, "SIGQUIT": unix.SIGQUIT, "SIGTSTP": unix.SIGTSTP,
	"SIGCONT": unix.SIGCONT,
}

// clientMessage is a text message of a client. A binary message is input.
type clientMessage struct {
	Type   string `json:"type"`
	Data   string `json:"data"`
	Cols   int    `json:"cols"`
	Rows   int    `json:"rows"`
	Signal string `json:"signal"`
}

// serverMessage is a text message to a client. A binary message is output.
type serverMessage struct {
	Type      string `json:"type"`            // event, error
	Event     string `json:"event,omitempty"` // started, exited
	SessionID string `json:"session_id,omitempty"`
	Pid       int    `json:"pid,omitempty"`
	ExitCode  *int   `json:"exit_code,omitempty"`
	Error     string `json:"error,omitempty"`
	Code      string `json:"code,omitempty"`
}

// attach joins a WebSocket with a terminal. What the terminal has printed before,
// as far as it is kept, comes first.
func (a *API) attach(w http.ResponseWriter, r *http.Request) {
	s := a.find(r.URL.Query().Get("session_id"))
	if s == nil {
		noSession(w)
		return
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		w.Header().Set("Upgrade", "websocket")
		w.Header().Set("Connection", "Upgrade")
		fault.HTTP(w, http.StatusUpgradeRequired, "E3006", "this path needs an upgrade to a WebSocket")
		return
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols: []string{SocketProtocol},
		// A token is never sent by a browser on its own, so a page of any origin
		// that has it was given it. Without a token, origins are all there is.
		InsecureSkipVerify: a.opts.Token,
		CompressionMode:    websocket.CompressionDisabled,
	})
	if err != nil {
		return // it has answered
	}
	defer conn.CloseNow()
	conn.SetReadLimit(maxWebSocket)
	s.attach()
	defer s.detach()
	// A connection that was taken over does not end the request any more.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	// With the API the programs have ended: how is still told.
	defer context.AfterFunc(a.ctx, func() {
		select {
		case <-time.After(lastWords):
			cancel()
		case <-ctx.Done():
		}
	})()
	t := &socket{session: s, conn: conn, run: s.run.Again(), input: make(chan []byte, inputQueue)}
	defer t.run.Close()
	var all sync.WaitGroup
	for _, part := range []func(context.Context){t.send, t.receive, t.ping, t.write} {
		all.Add(1)
		// The first of them to end ends the others.
		started := a.spawn(func() {
			defer all.Done()
			defer cancel()
			part(ctx)
		})
		if !started {
			all.Done()
			cancel()
		}
	}
	all.Wait()
}

// socket is one client of a terminal.
type socket struct {
	session *session
	conn    *websocket.Conn
	run     *process.Running // followed by send
	input   chan []byte      // from receive to write
}

// send passes on what the terminal shows, to its end.
func (t *socket) send(ctx context.Context) {
	if t.tell(ctx, serverMessage{Type: "event", Event: "started", SessionID: t.session.id, Pid: t.run.Pid()}) != nil {
		return
	}
	for {
		e, err := t.run.Next(ctx)
		if err != nil {
			t.conn.Close(websocket.StatusGoingAway, "the server ends")
			return
		}
		if end := e.GetEnd(); end != nil {
			code := int(end.GetExitCode())
			if t.tell(ctx, serverMessage{Type: "event", Event: "exited", SessionID: t.session.id, Pid: t.run.Pid(), ExitCode: &code}) == nil {
				t.conn.Close(websocket.StatusNormalClosure, "the program has ended")
			}
			return
		}
		if t.out(ctx, websocket.MessageBinary, e.GetData().GetPty()) != nil {
			return
		}
	}
}

func (t *socket) tell(ctx context.Context, m serverMessage) error {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // of such a struct it cannot be
	}
	return t.out(ctx, websocket.MessageText, b)
}

func (t *socket) out(ctx context.Context, kind websocket.MessageType, b []byte) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	return t.conn.Write(ctx, kind, b)
}

// write passes on what the client types. It has a goroutine of its own: a program
// that reads nothing must not keep a signal for it from being seen.
func (t *socket) write(ctx context.Context) {
	for {
		select {
		case b := <-t.input:
			if err := t.session.run.Write(ctx, b); err != nil && t.complain(ctx, err) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// complain tells the client what is wrong.
func (t *socket) complain(ctx context.Context, err error) error {
	_, code, text := fault.Of(err)
	return t.tell(ctx, serverMessage{Type: "error", Error: text, Code: string(code)})
}

// receive does what the client says, until it goes away. It is told of what is
// wrong with a message; the connection stays.
func (t *socket) receive(ctx context.Context) {
	for {
		kind, b, err := t.conn.Read(ctx)
		if err != nil {
			return
		}
		if kind == websocket.MessageBinary {
			t.typed(ctx, b)
		} else if err := t.message(ctx, b); err != nil && t.complain(ctx, err) != nil {
			return
		}
	}
}

func (t *socket) typed(ctx context.Context, b []byte) {
	select {
	case t.input <- b:
	case <-ctx.Done():
	}
}

func (t *socket) message(ctx context.Context, b []byte) error {
	var m clientMessage
	if err := json.Unmarshal(b, &m); err != nil {
		return errors.New("a text message is not the JSON object that is expected")
	}
	switch m.Type {
	case "input":
		t.typed(ctx, []byte(m.Data))
		return nil
	case "resize":
		if !validSize(m.Cols, m.Rows) {
			return errors.New("cols or rows is not from 1 to 65535")
		}
		return t.session.resize(m.Cols, m.Rows)
	case "signal":
		sig, ok := terminalSignals[m.Signal]
		if !ok {
			return errors.New("signal is not one that a terminal can be sent")
		}
		return t.run.SignalForeground(sig)
	}
	return errors.New("type is not input, resize or signal")
}

// ping finds out that a client is gone which did not say so.
func (t *socket) ping(ctx context.Context) {
	ticker := time.NewTicker(pingEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		wait, cancel := context.WithTimeout(ctx, pingTimeout)
		err := t.conn.Ping(wait)
		cancel()
		if err != nil {
			return
		}
	}
}
