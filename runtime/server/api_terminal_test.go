//go:build linux

package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/agent-sandbox/sandbox-go/runtime/httpapi"
)

// screen is a WebSocket to a terminal.
type screen struct {
	*websocket.Conn
	t     testing.TB
	shown string
	texts []map[string]any
}

func (r *rig) openTerminal(t testing.TB, body string) httpapi.Terminal {
	t.Helper()
	var term httpapi.Terminal
	r.call(t, "POST", "/pty/sessions", body).into(t, &term)
	return term
}

func (r *rig) attach(t testing.TB, term httpapi.Terminal) *screen {
	t.Helper()
	conn, resp, err := websocket.Dial(t.Context(), "ws://sandbox"+term.WSURL, &websocket.DialOptions{HTTPClient: r.http})
	if err != nil {
		t.Fatalf("%v: %+v", err, resp)
	}
	t.Cleanup(func() { conn.CloseNow() })
	conn.SetReadLimit(1 << 20)
	return &screen{Conn: conn, t: t}
}

// until reads until what is shown has text, or a text message has it.
func (s *screen) until(text string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	for !strings.Contains(s.shown, text) {
		kind, b, err := s.Read(ctx)
		if err != nil {
			s.t.Fatalf("%v before %q; shown %.2000q, %d messages", err, text, s.shown, len(s.texts))
		}
		if kind == websocket.MessageBinary {
			s.shown += string(b)
			continue
		}
		var m map[string]any
		if err := json.Unmarshal(b, &m); err != nil {
			s.t.Fatal(err)
		}
		s.texts = append(s.texts, m)
		if strings.Contains(string(b), text) {
			return
		}
	}
	_, s.shown, _ = strings.Cut(s.shown, text)
}

func (s *screen) say(m string) {
	s.t.Helper()
	if err := s.Write(s.t.Context(), websocket.MessageText, []byte(m)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) typed(text string) {
	s.t.Helper()
	if err := s.Write(s.t.Context(), websocket.MessageBinary, []byte(text)); err != nil {
		s.t.Fatal(err)
	}
}

func TestAPITerminal(t *testing.T) {
	r := newRig(t, nil)
	term := r.openTerminal(t, `{"shell":"/bin/sh","cols":132,"rows":43,"env":{"PS1":"> ","HELLO":"wörld"}}`)
	if term.Pid <= 0 || len(term.SessionID) != 32 || term.WSURL != "/pty?session_id="+term.SessionID {
		t.Errorf("got %+v", term)
	}
	s := r.attach(t, term)
	s.until(`"event":"started"`)
	s.typed("stty size; echo $HELLO $TERM\n")
	s.until("43 132")
	s.until("wörld xterm-256color")
	s.say(`{"type":"resize","cols":80,"rows":24}`)
	s.say(`{"type":"input","data":"stty size\n"}`)
	s.until("24 80")
	for m, want := range map[string]string{
		`{"type":"resize","cols":0,"rows":0}`:      "cols or rows",
		`{"type":"resize","cols":70000,"rows":24}`: "cols or rows",
		`{"type":"signal","signal":"SIGSEGV"}`:     "signal",
		`{"type":"other"}`:                         "type",
		`[]`:                                       "JSON object",
		`{`:                                        "JSON object",
	} {
		s.say(m)
		s.until(want)
	}
	// A signal is for what runs in the foreground, also when that reads nothing.
	s.typed("sh -c 'trap \"stty sane; echo cau''ght; exit\" INT; stty raw -echo; echo rea''dy; while :; do sleep 0.05; done'\n")
	s.until("ready")
	for range 4 {
		s.typed(strings.Repeat("x", 50_000))
	}
	s.say(`{"type":"signal","signal":"SIGINT"}`)
	s.until("caught")
	s.say(`{"type":"signal","signal":"SIGINT"}`) // the shell forgets what was typed
	var l httpapi.TerminalList
	r.call(t, "GET", "/pty/sessions", "").into(t, &l)
	if len(l.Sessions) != 1 || l.Sessions[0].Cols != 80 || l.Sessions[0].Rows != 24 || !l.Sessions[0].Alive || l.Sessions[0].Attached != 1 || l.Sessions[0].ID != term.SessionID {
		t.Errorf("got %+v", l)
	}
	// Another client sees what was shown before.
	other := r.attach(t, term)
	other.until("43 132")
	s.typed("\x15\nexit 7\n")
	for _, c := range []*screen{s, other} {
		c.until(`"exit_code":7`)
		if _, _, err := c.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
			t.Errorf("got %v", err)
		}
	}
}

// TestAPITerminalBytes: bytes arrive as they are, however a character is divided.
func TestAPITerminalBytes(t *testing.T) {
	r := newRig(t, nil)
	s := r.attach(t, r.openTerminal(t, `{"shell":"/bin/sh"}`))
	s.typed("stty -echo; printf '\\360\\237'; sleep 0.2; printf '\\230\\200<\\377>'\n")
	s.until("😀<\xff>")
	s.typed("cat\n")
	s.typed("\xe2\x82")
	s.typed("\xac\n")
	s.until("€")
}

func TestAPITerminalEnds(t *testing.T) {
	r := newRig(t, nil)
	term := r.openTerminal(t, `{"shell":"/bin/sh"}`)
	s := r.attach(t, term)
	s.typed("setsid sleep 300 & echo pid $!.\n")
	s.until("pid $!.")
	s.until("pid ")
	s.until(".")
	s.CloseNow()
	s = r.attach(t, term) // it lives on without a client
	s.until("started")
	var closed httpapi.TerminalClosed
	r.call(t, "DELETE", "/pty/sessions/"+term.SessionID, "").into(t, &closed)
	if closed.Status != "closed" {
		t.Errorf("got %+v", closed)
	}
	s.until(`"exited"`)
	expectGone(t, term.Pid)
	for _, c := range []struct {
		method, path, body string
		status             int
		code               string
	}{
		{"DELETE", "/pty/sessions/" + term.SessionID, "", 404, "E3010"},
		{"DELETE", "/pty/sessions/none", "", 404, "E3010"},
		{"GET", "/pty?session_id=none", "", 404, "E3010"},
		{"GET", "/pty", "", 404, "E3010"},
		{"POST", "/pty/sessions", `{"cols":0}`, 400, "E3011"},
		{"POST", "/pty/sessions", `{"rows":65536}`, 400, "E3011"},
		{"POST", "/pty/sessions", `{"rows":-1}`, 400, "E3011"},
		{"POST", "/pty/sessions", `{"rows":1.5}`, 400, "E3006"},
		{"POST", "/pty/sessions", `{"shell":"no-such-shell-here"}`, 404, "E3007"},
		{"POST", "/pty/sessions", `{"cwd":"/none/at/all"}`, 400, "E3012"},
	} {
		if a := r.call(t, c.method, c.path, c.body); a.status != c.status || a.code != c.code {
			t.Errorf("%s %s %s: got %d %s %s", c.method, c.path, c.body, a.status, a.code, a.body)
		}
	}
	open := r.openTerminal(t, ``)
	if a := r.call(t, "GET", open.WSURL, ""); a.status != 426 {
		t.Errorf("without an upgrade: got %+v", a)
	}
}

// TestAPITerminalLimit: of many at once, exactly as many open as may.
func TestAPITerminalLimit(t *testing.T) {
	r := newRig(t, nil)
	var ok, refused atomic.Int32
	var wg sync.WaitGroup
	for range 15 {
		wg.Go(func() {
			switch a := r.call(t, "POST", "/pty/sessions", `{"shell":"/bin/cat"}`); a.status {
			case 200:
				ok.Add(1)
			case 429:
				refused.Add(1)
			default:
				t.Errorf("got %+v", a)
			}
		})
	}
	wg.Wait()
	if ok.Load() != 10 || refused.Load() != 5 {
		t.Errorf("%d opened, %d refused", ok.Load(), refused.Load())
	}
	var l httpapi.TerminalList
	r.call(t, "GET", "/pty/sessions", "").into(t, &l)
	r.call(t, "DELETE", "/pty/sessions/"+l.Sessions[3].ID, "")
	r.openTerminal(t, `{"shell":"/bin/cat"}`)
}

// TestAPITerminalIdle: a terminal that nobody is attached to ends, one that somebody
// is attached to does not.
func TestAPITerminalIdle(t *testing.T) {
	r := newRig(t, func(o *Options) { o.testOnlyTerminalIdle = 3 * time.Second }) // until one is attached
	used := r.openTerminal(t, `{"shell":"/bin/sh"}`)
	s := r.attach(t, used)
	left := r.openTerminal(t, `{"shell":"/bin/sh"}`)
	expectGone(t, left.Pid)
	s.typed("echo still $((40+2))\n")
	s.until("still 42")
	s.Close(websocket.StatusNormalClosure, "")
	expectGone(t, used.Pid)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		var l httpapi.TerminalList
		r.call(t, "GET", "/pty/sessions", "").into(t, &l)
		if len(l.Sessions) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("left: %+v", l)
		}
	}
}

// TestAPITerminalBrowser: a browser brings the token as a subprotocol, from any
// origin; without the right one there is nothing.
func TestAPITerminalBrowser(t *testing.T) {
	r := newRig(t, nil)
	term := r.openTerminal(t, `{"shell":"/bin/cat"}`)
	plain := &http.Client{Transport: r.http.Transport.(withToken).next}
	for _, c := range []struct {
		name      string
		protocols []string
		ok        bool
	}{
		{"right", []string{"sandbox-terminal", "sandbox-token." + testToken}, true},
		{"wrong", []string{"sandbox-terminal", "sandbox-token." + testToken + "x"}, false},
		{"none", []string{"sandbox-terminal"}, false},
	} {
		conn, resp, err := websocket.Dial(t.Context(), "ws://sandbox"+term.WSURL, &websocket.DialOptions{
			HTTPClient: plain, Subprotocols: c.protocols, HTTPHeader: http.Header{"Origin": {"https://elsewhere.example"}},
		})
		if (err == nil) != c.ok {
			t.Errorf("%s: got %v", c.name, err)
		}
		if err != nil {
			if resp == nil || resp.StatusCode != 401 {
				t.Errorf("%s: got %+v", c.name, resp)
			}
			continue
		}
		if got := conn.Subprotocol(); got != "sandbox-terminal" || strings.Contains(fmt.Sprint(resp.Header), testToken) {
			t.Errorf("%s: subprotocol %q, %v", c.name, got, resp.Header)
		}
		conn.CloseNow()
	}
	// The token in the address is no token.
	_, resp, err := websocket.Dial(t.Context(), "ws://sandbox"+term.WSURL+"&token="+testToken, &websocket.DialOptions{HTTPClient: plain})
	if err == nil || resp.StatusCode != 401 {
		t.Errorf("in the address: got %v", err)
	}
}

// TestAPITerminalOrigins: without a token the origin is all that there is.
func TestAPITerminalOrigins(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Token, o.AllowNoToken = "", true })
	term := r.openTerminal(t, `{"shell":"/bin/cat"}`)
	_, resp, err := websocket.Dial(t.Context(), "ws://sandbox"+term.WSURL, &websocket.DialOptions{
		HTTPClient: r.http, HTTPHeader: http.Header{"Origin": {"https://elsewhere.example"}},
	})
	if err == nil || resp.StatusCode != 403 {
		t.Errorf("got %v", err)
	}
}

// TestAPITerminalHostile: messages that are too large end the connection and not the
// terminal.
func TestAPITerminalHostile(t *testing.T) {
	r := newRig(t, nil)
	term := r.openTerminal(t, `{"shell":"/bin/sh"}`)
	s := r.attach(t, term)
	s.typed(strings.Repeat("x", 129<<10))
	for {
		if _, _, err := s.Read(t.Context()); err != nil {
			if websocket.CloseStatus(err) != websocket.StatusMessageTooBig {
				t.Errorf("got %v", err)
			}
			break
		}
	}
	s = r.attach(t, term)
	s.typed("echo still $((40+2))\n")
	s.until("still 42")
}

// TestAPITerminalShutdown: clients are told how the program ended also when it is
// the server that ends, after what they have not taken yet.
func TestAPITerminalShutdown(t *testing.T) {
	r := newRig(t, nil)
	term := r.openTerminal(t, `{"shell":"/bin/sh"}`)
	s := r.attach(t, term)
	s.until(`"event":"started"`)
	fifo := filepath.Join(t.TempDir(), "printed")
	s.typed("head -c 400000 /dev/zero | tr '\\0' x; echo; mkfifo " + fifo + "; echo >" + fifo + "; sleep 600\n")
	eventually(t, "it is printed", func() bool { _, err := os.Stat(fifo); return err == nil })
	down := make(chan error, 1)
	go func() { down <- r.Shutdown(t.Context()) }()
	eventually(t, "terminals are refused", func() bool {
		req, _ := http.NewRequestWithContext(t.Context(), "POST", "http://sandbox/pty/sessions", strings.NewReader("{}"))
		res, err := r.http.Do(req)
		if err != nil {
			return true // it does not listen any more
		}
		res.Body.Close()
		return res.StatusCode == http.StatusServiceUnavailable
	})
	s.until(`"exited"`)
	if _, _, err := s.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("got %v", err)
	}
	if err := <-down; err != nil {
		t.Error(err)
	}
}
