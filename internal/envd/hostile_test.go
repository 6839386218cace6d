package envd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clientOf is a client of a server that says what f says.
func clientOf(t testing.TB, f http.HandlerFunc, o Options) *Client {
	t.Helper()
	srv := httptest.NewServer(f)
	o.URL = srv.URL
	c, err := New(&o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); srv.CloseClientConnections(); srv.Close() })
	return c
}

func envelope(flags byte, payload []byte) []byte {
	out := append([]byte{flags}, binary.BigEndian.AppendUint32(nil, uint32(len(payload)))...)
	return append(out, payload...)
}

func event(e *process.ProcessEvent) []byte {
	b, err := proto.Marshal(&process.StartResponse{Event: e})
	if err != nil {
		panic(err)
	}
	return envelope(0, b)
}

func started(pid uint32) []byte {
	return event(&process.ProcessEvent{Event: &process.ProcessEvent_Start{Start: &process.ProcessEvent_StartEvent{Pid: pid}}})
}

func printed(text string) []byte {
	return event(&process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: &process.ProcessEvent_DataEvent{
		Output: &process.ProcessEvent_DataEvent_Stdout{Stdout: []byte(text)}}}})
}

func ended(code int32) []byte {
	return event(&process.ProcessEvent{Event: &process.ProcessEvent_End{End: &process.ProcessEvent_EndEvent{
		ExitCode: code, Exited: true, Status: fmt.Sprint("exit status ", code)}}})
}

var alive = event(&process.ProcessEvent{Event: &process.ProcessEvent_Keepalive{Keepalive: &process.ProcessEvent_KeepAlive{}}})

func trailer(json string) []byte { return envelope(2, []byte(json)) }

// streaming answers a stream with parts.
func streaming(parts ...[]byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/connect+proto")
		for _, p := range parts {
			w.Write(p)
		}
	}
}

// run starts a process and reads its stream to the end.
func run(c *Client) (out string, end *End, err error) {
	s, err := c.Start(context.Background(), &StartOptions{Path: "x"})
	if err != nil {
		return "", nil, err
	}
	defer s.Close(context.Canceled)
	for {
		ev, err := s.Next()
		if err != nil {
			return out, end, err
		}
		out += string(ev.Stdout)
		if ev.End != nil {
			end = ev.End
			if _, err := s.Next(); err != io.EOF {
				return out, end, fmt.Errorf("after the end: %v", err)
			}
			return out, end, nil
		}
	}
}

// A stream counts as success only when it says so, in order and to its end.
func TestStreams(t *testing.T) {
	ok := trailer("{}")
	for _, c := range []struct {
		name  string
		parts [][]byte
		code  errdefs.Code // empty: success
	}{
		{"whole", [][]byte{started(7), alive, printed("hi"), ended(0), ok}, ""},
		{"unknown event", [][]byte{started(7), event(&process.ProcessEvent{}), ended(0), ok}, ""},
		{"no end event", [][]byte{started(7), printed("hi"), ok}, "E5003"},
		{"no end event, no trailer", [][]byte{started(7), printed("hi")}, "E5003"},
		{"no trailer", [][]byte{started(7), ended(0)}, "E5003"},
		{"cut in an event", [][]byte{started(7), printed("hi there")[:8]}, "E5003"},
		{"cut in a prefix", [][]byte{started(7), {0, 0}}, "E5003"},
		{"nothing at all", nil, "E5003"},
		{"trailer alone", [][]byte{ok}, "E5003"},
		{"error in the trailer", [][]byte{started(7), trailer(`{"error":{"code":"unavailable","message":"gone"}}`)}, "E5003"},
		{"error after the end", [][]byte{started(7), ended(0), trailer(`{"error":{"code":"internal","message":"x"}}`)}, "E3000"},
		{"event after the end", [][]byte{started(7), ended(0), printed("more"), ok}, "E3006"},
		{"second start", [][]byte{started(7), started(8), ended(0), ok}, "E3006"},
		{"no start", [][]byte{printed("hi"), ended(0), ok}, "E3006"},
		{"start without a process", [][]byte{started(0), ended(127), ok}, "E3006"},
		{"garbage", [][]byte{started(7), envelope(0, []byte("\xff\xff\xff\xffgarbage"))}, "E3006"},
		{"garbage trailer", [][]byte{started(7), ended(0), trailer("{")}, "E3006"},
		{"compressed without being asked", [][]byte{started(7), envelope(1, []byte("x"))}, "E3006"},
		{"not an envelope", [][]byte{[]byte("<html>" + strings.Repeat("x", 1000))}, "E3006"},
		{"bytes after the trailer", [][]byte{started(7), ended(0), ok, ended(0)}, "E3006"},
		{"deadline", [][]byte{started(7), trailer(`{"error":{"code":"deadline_exceeded","message":"x"}}`)}, "E3001"},
		{"program missing", [][]byte{trailer(`{"error":{"code":"invalid_argument","message":"exec: no such file or directory"}}`)}, "E3007"},
		{"directory missing", [][]byte{trailer(`{"error":{"code":"invalid_argument","message":"cwd '/x' does not exist"}}`)}, "E3012"},
		{"unknown user", [][]byte{trailer(`{"error":{"code":"unauthenticated","message":"invalid username: 'x'"}}`)}, "E3008"},
		{"exact code", [][]byte{trailer(`{"error":{"code":"internal","message":"x"},"metadata":{"sandbox-error-code":["E3012"]}}`)}, "E3012"},
		{"code of another area", [][]byte{trailer(`{"error":{"code":"internal","message":"x"},"metadata":{"sandbox-error-code":["E2021"]}}`)}, "E3000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, end, err := run(clientOf(t, streaming(c.parts...), Options{}))
			if got := errdefs.CodeOf(err); got != c.code {
				t.Errorf("got %v, want %s", err, c.code)
			}
			if c.code == "" && (end == nil || end.ExitCode != 0) || c.code != "" && err == nil {
				t.Errorf("got %q, %+v, %v", out, end, err)
			}
		})
	}
}

func TestAnswersThatAreNoStream(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		typ    string
		body   string
		code   errdefs.Code
	}{
		{"gateway", 502, "text/html", "<html>bad gateway</html>", "E5003"},
		{"unavailable", 503, "application/json", `{"code":503,"message":"x"}`, "E5003"},
		{"token refused", 401, "application/json", `{"code":401,"message":"unauthorized"}`, "E1006"},
		{"web page", 200, "text/html", "<html>hello</html>", "E3006"},
		{"not there", 404, "text/plain", "404", "E3006"},
		{"redirect", 302, "text/plain", "", "E3006"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := run(clientOf(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", c.typ)
				w.Header().Set("Location", "http://192.0.2.1/")
				w.WriteHeader(c.status)
				io.WriteString(w, c.body)
			}, Options{}))
			if errdefs.CodeOf(err) != c.code {
				t.Errorf("got %v, want %s", err, c.code)
			}
		})
	}
}

// The token goes to the sandbox and nowhere else; nothing follows a redirect.
func TestTokenStays(t *testing.T) {
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	var got http.Header
	c := clientOf(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Clone()
		http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
	}, Options{Token: "secret-token", Headers: http.Header{"X-Extra": {"1"}}})
	_, _, err := run(c)
	_, statErr := c.Stat(t.Context(), "x")
	_, readErr := c.ReadFile(t.Context(), "x", 0, -1)
	_, writeErr := c.WriteFile(t.Context(), "x", strings.NewReader("x"), 1, nil)
	for _, err := range []error{err, statErr, readErr, writeErr, c.Health(t.Context())} {
		if errdefs.CodeOf(err) != "E3006" || strings.Contains(fmt.Sprint(err), "secret-token") {
			t.Errorf("got %v", err)
		}
	}
	if elsewhere.Load() != 0 {
		t.Error("a redirect was followed")
	}
	if got.Get("X-Access-Token") != "secret-token" || got.Get("X-Extra") != "1" || got.Get("Accept-Encoding") != "identity" {
		t.Errorf("headers: %v", got)
	}
}

// A server that never stops talking costs bounded memory, and its time is up.
func TestEndless(t *testing.T) {
	for name, f := range map[string]http.HandlerFunc{
		"header": func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			io.WriteString(conn, "HTTP/1.1 200 OK\r\n")
			for i := 0; ; i++ {
				if _, err := fmt.Fprintf(conn, "X-%d: %s\r\n", i, strings.Repeat("x", 1000)); err != nil {
					return
				}
			}
		},
		"frame": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/connect+proto")
			w.Write([]byte{0, 0xff, 0xff, 0xff, 0xff})
			chunk := make([]byte, 1<<20)
			for {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		},
		"error body": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(500)
			chunk := bytes.Repeat([]byte("x"), 1<<20)
			for {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		},
		"signs of life before the start": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/connect+proto")
			w.Write(alive)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
		"silence": func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := clientOf(t, f, Options{RequestTimeout: 500 * time.Millisecond})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			_, _, err := run(c)
			if err == nil || errdefs.CodeOf(err) == "" || time.Since(start) > time.Minute {
				t.Errorf("start: %v after %v", err, time.Since(start))
			}
			if _, err := c.Stat(t.Context(), "x"); errdefs.CodeOf(err) == "" {
				t.Errorf("stat: %v", err)
			}
			if b, err := c.ReadFile(t.Context(), "x", 0, -1); err == nil {
				b.Close()
			}
			runtime.ReadMemStats(&after)
			if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 64<<20 {
				t.Errorf("heap grew by %d MiB", grown>>20)
			}
		})
	}
}

func TestRequestTimeout(t *testing.T) {
	c := clientOf(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}, Options{RequestTimeout: 100 * time.Millisecond})
	_, startErr := c.Start(t.Context(), &StartOptions{Path: "x"})
	_, statErr := c.Stat(t.Context(), "x")
	_, readErr := c.ReadFile(t.Context(), "x", 0, -1)
	_, writeErr := c.WriteFile(t.Context(), "x", strings.NewReader("x"), 1, nil)
	for i, err := range []error{startErr, statErr, readErr, writeErr, c.Health(t.Context())} {
		if errdefs.CodeOf(err) != "E5002" || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "100ms") {
			t.Errorf("%d: got %v", i, err)
		}
	}
}

// transferPause is one of eight, all of which are longer than the request timeout.
const transferPause = 300 * time.Millisecond

// A transfer may take as long as it moves.
func TestTransferOutlivesRequestTimeout(t *testing.T) {
	t.Parallel()
	c := clientOf(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			io.Copy(io.Discard, r.Body)
			io.WriteString(w, `[{"path":"/x"}]`)
			return
		}
		w.Header().Set("Content-Length", "8")
		for range 8 {
			io.WriteString(w, "x")
			w.(http.Flusher).Flush()
			time.Sleep(transferPause)
		}
	}, Options{RequestTimeout: 7 * transferPause})
	b, err := c.ReadFile(t.Context(), "x", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(b); string(got) != "xxxxxxxx" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	b.Close()
	if _, err := c.WriteFile(t.Context(), "x", &slowReader{n: 8}, -1, nil); err != nil {
		t.Error(err)
	}
}

type slowReader struct{ n int }

func (r *slowReader) Read(p []byte) (int, error) {
	time.Sleep(transferPause)
	if r.n--; r.n < 0 {
		return 0, io.EOF
	}
	p[0] = 'x'
	return 1, nil
}

func TestTransferBreaks(t *testing.T) {
	short := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "short")
	}
	b, err := clientOf(t, short, Options{}).ReadFile(t.Context(), "x", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(b); string(got) != "short" || errdefs.CodeOf(err) != "E5003" {
		t.Errorf("got %q, %v", got, err)
	}
	b.Close()
	bad := errors.New("bad disk")
	c := clientOf(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }, Options{})
	if _, err := c.WriteFile(t.Context(), "x", io.MultiReader(strings.NewReader("x"), failing{bad}), -1, nil); !errors.Is(err, bad) {
		t.Errorf("got %v", err)
	}
	for _, answer := range []string{"", "[]", "{}", "<html>"} {
		c := clientOf(t, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			io.WriteString(w, answer)
		}, Options{})
		if _, err := c.WriteFile(t.Context(), "x", strings.NewReader("x"), 1, nil); err == nil {
			t.Errorf("answer %q counts as written", answer)
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// Ranges are used where the server has them and made where it has not.
func TestRanges(t *testing.T) {
	data := "0123456789"
	for name, f := range map[string]http.HandlerFunc{
		"ranges": func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "x", time.Time{}, strings.NewReader(data))
		},
		"no ranges": func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, data) },
	} {
		c := clientOf(t, f, Options{})
		for _, r := range []struct {
			off, n int64
			want   string
		}{{0, -1, data}, {3, -1, data[3:]}, {3, 4, data[3:7]}, {8, 10, data[8:]}, {10, 1, ""}, {20, -1, ""}} {
			b, err := c.ReadFile(t.Context(), "x", r.off, r.n)
			if err != nil {
				t.Errorf("%s %+v: %v", name, r, err)
				continue
			}
			if got, err := io.ReadAll(b); string(got) != r.want || err != nil {
				t.Errorf("%s %+v: got %q, %v", name, r, got, err)
			}
			b.Close()
		}
	}
	c := clientOf(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Range", "bytes 0-3/10")
		w.WriteHeader(http.StatusPartialContent)
		io.WriteString(w, "0123")
	}, Options{})
	if _, err := c.ReadFile(t.Context(), "x", 5, 4); errdefs.CodeOf(err) != "E3006" {
		t.Errorf("another part: %v", err)
	}
}

// A silent stream is lost after three intervals; one that shows life is not.
func TestKeepAlive(t *testing.T) {
	t.Parallel()
	var asked atomic.Value
	quiet := func(lively bool) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			asked.Store(r.Header.Get("Keepalive-Ping-Interval"))
			io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/connect+proto")
			w.Write(started(7))
			for range 20 {
				w.(http.Flusher).Flush()
				select {
				case <-time.After(200 * time.Millisecond):
				case <-r.Context().Done():
					return
				}
				if lively {
					w.Write(alive)
				}
			}
			w.Write(ended(0))
			w.Write(trailer("{}"))
		}
	}
	if _, end, err := run(clientOf(t, quiet(true), Options{KeepAlive: time.Second})); err != nil || end == nil {
		t.Errorf("lively: %v", err)
	}
	start := time.Now()
	if _, _, err := run(clientOf(t, quiet(false), Options{KeepAlive: time.Second})); errdefs.CodeOf(err) != "E5003" || time.Since(start) > 20*time.Second {
		t.Errorf("silent: %v after %v", err, time.Since(start))
	}
	if asked.Load() != "1" {
		t.Errorf("asked for %v", asked.Load())
	}
	if _, end, err := run(clientOf(t, quiet(false), Options{KeepAlive: -1})); err != nil || end == nil || asked.Load() != "" {
		t.Errorf("off: %v, asked for %q", err, asked.Load())
	}
}

// A start that is given up before its answer ends what it started.
func TestStartGivenUp(t *testing.T) {
	var killed atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := clientOf(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/SendSignal") {
			b, _ := io.ReadAll(r.Body)
			var req process.SendSignalRequest
			if proto.Unmarshal(b, &req) == nil && req.GetSignal() == process.Signal(syscall.SIGKILL) {
				killed.Store(int64(req.GetProcess().GetPid()))
			}
			w.Header().Set("Content-Type", "application/proto")
			return
		}
		io.Copy(io.Discard, r.Body)
		cancel()
		time.Sleep(200 * time.Millisecond)
		w.Header().Set("Content-Type", "application/connect+proto")
		w.Write(started(42))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}, Options{})
	if _, err := c.Start(ctx, &StartOptions{Path: "x"}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if killed.Load() != 42 {
		t.Errorf("killed %d", killed.Load())
	}
}

func TestDial(t *testing.T) {
	refused := errors.New("refused")
	c, err := New(&Options{Dial: func(context.Context) (net.Conn, error) { return nil, refused }})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := run(c); errdefs.CodeOf(err) != "E5001" || !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	if _, err := c.OpenChannel(t.Context(), NewChannelID()); errdefs.CodeOf(err) != "E5001" || !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	for _, bad := range []string{"", "host:1", "ftp://host", "http://", "://"} {
		if _, err := New(&Options{URL: bad}); errdefs.CodeOf(err) != "E5001" {
			t.Errorf("URL %q: %v", bad, err)
		}
	}
}

func TestOpenChannel(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		code   errdefs.Code
	}{
		"agreed":           {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: sandbox-frames/1\r\n\r\n", ""},
		"another protocol": {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", "E3006"},
		"early bytes":      {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: sandbox-frames/1\r\n\r\nxx", "E3006"},
		"refused":          {"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\n{}", "E1006"},
		"nonsense":         {"hello\r\n\r\n", "E5003"},
		"nothing":          {"", "E5003"},
		"endless":          {"HTTP/1.1 101 X\r\n" + strings.Repeat("A: "+strings.Repeat("x", 1000)+"\r\n", 100), "E5003"},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := net.Pipe()
			var wg sync.WaitGroup
			wg.Go(func() {
				http.ReadRequest(bufio.NewReader(server))
				io.WriteString(server, c.answer)
				if c.answer == "" {
					server.Close()
				}
			})
			ec, err := New(&Options{RequestTimeout: time.Second, Dial: func(context.Context) (net.Conn, error) { return client, nil }})
			if err != nil {
				t.Fatal(err)
			}
			conn, err := ec.OpenChannel(t.Context(), NewChannelID())
			if errdefs.CodeOf(err) != c.code || (err == nil) != (c.code == "") {
				t.Errorf("got %v, want %s", err, c.code)
			}
			if conn != nil {
				conn.Close()
			}
			server.Close()
			wg.Wait()
		})
	}
}

// The mode of an entry is read from the text that fs.FileMode prints.
func FuzzParseMode(f *testing.F) {
	for _, s := range []string{"-rw-r--r--", "drwxr-xr-x", "Lrwxrwxrwx", "dtrwxrwxrwx", "urwxr-xr-x", "Dcrw-rw-rw-", "prw-------", "", "-"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if m, ok := parseMode(s); ok {
			again, ok := parseMode(m.String())
			if !ok || again != m {
				t.Errorf("%q is %v, which is read as %v", s, m, again)
			}
		}
	})
}

// Whatever bytes a server sends, the client ends with a result or an error of ours.
func FuzzStream(f *testing.F) {
	f.Add(bytes.Join([][]byte{started(7), printed("x"), ended(0), trailer("{}")}, nil))
	f.Add([]byte{0, 0, 0, 0, 0})
	f.Add([]byte("\x02\x00\x00\x00\x02{}"))
	var body atomic.Value
	body.Store([]byte{})
	c := clientOf(f, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/connect+proto")
		w.Write(body.Load().([]byte))
	}, Options{})
	f.Fuzz(func(t *testing.T, data []byte) {
		body.Store(data)
		_, end, err := run(c)
		if err != nil && errdefs.CodeOf(err) == "" || err == nil && end == nil {
			t.Errorf("got %+v, %v", end, err)
		}
	})
}
