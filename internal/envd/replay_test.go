package envd

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/agent-sandbox/sandbox-go/internal/pb/filesystem/filesystemconnect"
	"github.com/agent-sandbox/sandbox-go/internal/pb/process/processconnect"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// recordings are sessions of envd 0.6.13; the README beside them explains them.
const recordings = "../../runtime/server/testdata/recordings"

type recorded struct {
	Method, Path    string
	RequestHeaders  map[string]any
	Status          *int
	ResponseHeaders map[string]any
	Response        *recordedBody
}

type recordedBody struct {
	BodyBase64 string
	Decoded    any
	Frames     []struct {
		Flags                int
		LengthPrefixedBase64 string
		Decoded              any
	}
	TrailingBase64 string
	Cut            any
}

func (b *recordedBody) bytes() []byte {
	out, _ := base64.StdEncoding.DecodeString(b.BodyBase64)
	for _, f := range b.Frames {
		p, _ := base64.StdEncoding.DecodeString(f.LengthPrefixedBase64)
		out = append(out, p...)
	}
	rest, _ := base64.StdEncoding.DecodeString(b.TrailingBase64)
	return append(out, rest...)
}

// stream is what the frames of an answer say.
func (b *recordedBody) stream() (out string, end map[string]any, failed bool) {
	var text []byte
	failed = true // until its end says otherwise
	for _, f := range b.Frames {
		m, _ := f.Decoded.(map[string]any)
		if f.Flags&2 != 0 {
			failed = m["error"] != nil
			continue
		}
		event, _ := m["event"].(map[string]any)
		if data, ok := event["data"].(map[string]any); ok {
			for _, name := range []string{"stdout", "stderr"} {
				s, _ := data[name].(string)
				p, _ := base64.StdEncoding.DecodeString(s)
				text = append(text, p...)
			}
		}
		if e, ok := event["end"].(map[string]any); ok {
			end = e
		}
	}
	return string(text), end, failed
}

// TestReplay lets our client make calls, which are answered with the bytes that
// envd has answered to others.
func TestReplay(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(recordings, "*.json"))
	if err != nil || len(files) < 50 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	var current atomic.Pointer[recorded]
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		e := current.Load()
		if e.Status == nil {
			panic(http.ErrAbortHandler)
		}
		for k, v := range e.ResponseHeaders {
			if s, ok := v.(string); ok && k != "Content-Length" && k != "Transfer-Encoding" && k != "Date" {
				w.Header().Set(k, s)
			}
		}
		w.WriteHeader(*e.Status)
		if e.Response != nil {
			w.Write(e.Response.bytes())
		}
	}))
	srv.Config.ErrorLog = nil
	defer srv.Close()
	binary, text := replayClient(t, srv.URL, false), replayClient(t, srv.URL, true)
	played := 0
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var r struct{ Exchanges []*recorded }
			if err := json.Unmarshal(data, &r); err != nil {
				t.Fatal(err)
			}
			for i, e := range r.Exchanges {
				if e.Response != nil && e.Response.Cut != nil || e.ResponseHeaders["Content-Encoding"] != nil || e.ResponseHeaders["Connect-Content-Encoding"] != nil {
					continue // not whole, or not what we ask for
				}
				c := text
				if typ, _ := e.ResponseHeaders["Content-Type"].(string); strings.HasSuffix(typ, "proto") {
					c = binary
				}
				current.Store(e)
				begin := time.Now()
				if replay(t, i, c, e) {
					played++
				}
				if d := time.Since(begin); d > 20*time.Second {
					t.Errorf("%d: %s took %v", i, e.Path, d)
				}
			}
		})
	}
	if played < 200 {
		t.Errorf("only %d exchanges were played", played)
	}
}

func replayClient(t *testing.T, url string, asJSON bool) *Client {
	t.Helper()
	c, err := New(&Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if asJSON {
		identity := connect.WithAcceptCompression("gzip", nil, nil)
		c.process = processconnect.NewProcessClient(c.http, c.base, identity, connect.WithProtoJSON())
		c.files = filesystemconnect.NewFilesystemClient(c.http, c.base, identity, connect.WithProtoJSON())
	}
	return c
}

// replay makes the call of e and compares what comes of it. It reports whether
// there is such a call.
func replay(t *testing.T, i int, c *Client, e *recorded) bool {
	t.Helper()
	ctx := t.Context()
	path, _, _ := strings.Cut(e.Path, "?")
	ok := e.Status != nil && *e.Status/100 == 2
	var err error
	switch e.Method + " " + path {
	case "POST /process.Process/Start":
		s, serr := c.Start(ctx, &StartOptions{Path: "x"})
		replayStream(t, i, e, s, serr)
		return true
	case "POST /process.Process/Connect":
		s, serr := c.Attach(ctx, 7)
		replayStream(t, i, e, s, serr)
		return true
	case "POST /process.Process/List":
		var ps []Process
		ps, err = c.Processes(ctx)
		if m, _ := e.Response.Decoded.(map[string]any); err == nil {
			if list, _ := m["processes"].([]any); len(list) != len(ps) {
				t.Errorf("%d: %d processes, want %d", i, len(ps), len(list))
			}
		}
	case "POST /process.Process/SendInput":
		err = c.SendInput(ctx, 7, []byte("x"))
	case "POST /process.Process/CloseStdin":
		err = c.CloseStdin(ctx, 7)
	case "POST /process.Process/SendSignal":
		err = c.Signal(ctx, 7, 9, One)
	case "POST /filesystem.Filesystem/Stat":
		var got *Entry
		got, err = c.Stat(ctx, "x")
		if m, _ := e.Response.Decoded.(map[string]any); err == nil {
			if want, _ := m["entry"].(map[string]any); want["path"] != got.Path || want["name"] != got.Name {
				t.Errorf("%d: %+v, want %v", i, got, want)
			}
		}
	case "POST /filesystem.Filesystem/ListDir":
		var got []*Entry
		got, err = c.List(ctx, "x", 1)
		if m, _ := e.Response.Decoded.(map[string]any); err == nil {
			if list, _ := m["entries"].([]any); len(list) != len(got) {
				t.Errorf("%d: %d entries, want %d", i, len(got), len(list))
			}
		}
	case "POST /filesystem.Filesystem/MakeDir":
		err = c.MakeDir(ctx, "x")
	case "POST /filesystem.Filesystem/Move":
		err = c.Move(ctx, "x", "y")
	case "POST /filesystem.Filesystem/Remove":
		err = c.Remove(ctx, "x")
	case "GET /health":
		var f Features
		if f, err = c.Features(ctx); f != (Features{}) {
			t.Errorf("%d: %+v", i, f)
		}
	case "POST /files":
		_, err = c.WriteFile(ctx, "x", strings.NewReader("x"), 1, nil)
		if list, empty := e.Response.Decoded.([]any); empty && len(list) == 0 {
			ok = false // it says that it has written nothing
		}
	case "POST /files/compose":
		err = c.Compose(ctx, []string{"x"}, "y")
	case "GET /files":
		if e.RequestHeaders["Range"] != nil || e.Status != nil && *e.Status == http.StatusNotModified {
			return false
		}
		var b *Body
		if b, err = c.ReadFile(ctx, "x", 0, -1); err == nil {
			var got []byte
			if got, err = io.ReadAll(b); err == nil && !bytes.Equal(got, e.Response.bytes()) {
				t.Errorf("%d: %d bytes, want %d", i, len(got), len(e.Response.bytes()))
			}
			b.Close()
		}
	default:
		return false
	}
	if ok != (err == nil) || err != nil && errdefs.CodeOf(err) == "" {
		t.Errorf("%d: %s %s answered %v: %v", i, e.Method, e.Path, e.Status, err)
	}
	return true
}

func replayStream(t *testing.T, i int, e *recorded, s *Stream, err error) {
	t.Helper()
	var out []byte
	var end *End
	for err == nil && end == nil {
		var ev Event
		if ev, err = s.Next(); err == nil {
			out = append(append(out, ev.Stdout...), ev.Stderr...)
			end = ev.End
		}
	}
	if s != nil {
		s.Close(errors.New("done"))
	}
	var wantOut string
	var wantEnd map[string]any
	failed := true
	if e.Response != nil {
		wantOut, wantEnd, failed = e.Response.stream()
	}
	if failed || wantEnd == nil {
		if errdefs.CodeOf(err) == "" {
			t.Errorf("%d: success, %v, where envd has failed", i, err)
		}
		return
	}
	code, _ := wantEnd["exitCode"].(float64)
	exited, _ := wantEnd["exited"].(bool)
	if err != nil || end.ExitCode != int(code) || end.Exited != exited || string(out) != wantOut {
		t.Errorf("%d: %q %+v, %v; want %q %v", i, out, end, err, wantOut, wantEnd)
	}
}

// Whatever a server or something before it answers, each call gives an error
// with a code, and never success.
func TestAnswersThatAreNone(t *testing.T) {
	for name, f := range map[string]http.HandlerFunc{
		"gateway":       status(http.StatusBadGateway, "text/html", "<html>bad gateway</html>"),
		"gateway, JSON": status(http.StatusBadGateway, "application/json", `{"sandboxId":"x","message":"The sandbox was not found","code":502}`),
		"web page":      status(http.StatusOK, "text/html", "<html>hello</html>"),
		"other JSON":    status(http.StatusOK, "application/json", `{"news":[1,2,3]}`),
		"number code":   status(http.StatusUnauthorized, "application/json", `{"code":401,"message":"no token"}`),
		"string code":   status(http.StatusForbidden, "application/json", `{"code":"permission_denied","message":"x"}`),
		"empty error":   status(http.StatusInternalServerError, "", ""),
		"strange":       status(299, "application/octet-stream", "\x00\xff"),
		"cut": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1000")
			io.WriteString(w, "[")
		},
		"hangs up": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			c := clientOf(t, f, Options{RequestTimeout: 10 * time.Second})
			ctx := t.Context()
			_, writeErr := c.WriteFile(ctx, "x", strings.NewReader("x"), 1, nil)
			_, statErr := c.Stat(ctx, "x")
			_, channelErr := c.OpenChannel(ctx, NewChannelID())
			_, startErr := c.Start(ctx, &StartOptions{Path: "x"})
			for call, err := range map[string]error{
				"write": writeErr, "stat": statErr, "channel": channelErr, "start": startErr,
				"compose": c.Compose(ctx, []string{"a"}, "b"), "input": c.SendInput(ctx, 7, []byte("x")),
				"signal": c.Signal(ctx, 7, 9, Tree),
			} {
				if errdefs.CodeOf(err) == "" {
					t.Errorf("%s: %v", call, err)
				}
				if strings.HasPrefix(name, "gateway") && errdefs.CodeOf(err) != "E5003" {
					t.Errorf("%s: %v, want E5003, so that the provider is asked", call, err)
				}
			}
		})
	}
}

func status(code int, typ, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if typ != "" {
			w.Header().Set("Content-Type", typ)
		}
		w.WriteHeader(code)
		io.WriteString(w, body)
	}
}
