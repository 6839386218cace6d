package gateway

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/providers/local"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// envRole makes this test program play another part: a gateway that is to be
// killed, or a server inside a sandbox.
const envRole = "GATEWAY_TEST_ROLE"

// roles are the parts; each ends the process.
var roles = map[string]func() error{}

// waitLimit bounds every wait for a condition.
const waitLimit = 20 * time.Second

func TestMain(m *testing.M) {
	if name := os.Getenv(envRole); name != "" {
		if err := roles[name](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// fixture is a gateway under test.
type fixture struct {
	t        testing.TB
	state    string // of the provider; the gateway's is below it
	provider providers.Provider
	s        *Server
	addr     string
	key      string
	client   *http.Client
	served   chan error
}

// newLocal makes a provider of real sandboxes, or skips the test where none
// can be built; in CI that is a failure.
func newLocal(t testing.TB, state string) *local.Provider {
	t.Helper()
	p, err := local.New(providers.Config{StateDir: state, Settings: map[string]string{"pool": "0"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := p.Check(ctx); err != nil {
		p.Close()
		if errors.Is(err, errdefs.ErrIsolation) && os.Getenv("CI") == "" {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	return p
}

// startLocal starts a gateway on real sandboxes. At the end all are killed and
// nothing may be left.
func startLocal(t testing.TB, o Options) *fixture {
	t.Helper()
	state := t.TempDir()
	p := newLocal(t, state)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		killAll(t, p)
		eventually(t, "no sandbox is left", func() bool {
			// Those that were being made when their creator was killed end by
			// themselves; their directories wait for a collection.
			if err := p.GC(context.Background()); err != nil {
				t.Error(err)
			}
			left, _ := os.ReadDir(filepath.Join(state, "local", "boxes"))
			return len(left) == 0
		})
	})
	o.Provider = p
	return start(t, state, o)
}

// killAll kills every sandbox of a provider.
func killAll(t testing.TB, p providers.Provider) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	page, err := p.List(ctx, providers.ListRequest{Limit: 1000})
	if err != nil {
		t.Error(err)
		return
	}
	for _, sb := range page.Sandboxes {
		if err := p.Kill(ctx, sb.ID); err != nil && !isGone(err) {
			t.Error(err)
		}
	}
}

// start starts a gateway that ends with the test.
func start(t testing.TB, state string, o Options) *fixture {
	t.Helper()
	f := &fixture{t: t, state: state, provider: o.Provider}
	f.begin(o)
	k, err := f.s.Keys().Create("test")
	if err != nil {
		t.Fatal(err)
	}
	f.key = k.Secret
	t.Cleanup(f.stop)
	return f
}

// begin starts the gateway, also again.
func (f *fixture) begin(o Options) {
	f.t.Helper()
	o.StateDir = filepath.Join(f.state, "gateway")
	o.Provider = f.provider
	s, err := New(&o)
	if err != nil {
		f.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	f.s, f.addr = s, l.Addr().String()
	f.client = &http.Client{Transport: &http.Transport{DisableCompression: true}}
	f.served = make(chan error, 1)
	go func() { f.served <- s.Serve(l) }()
}

// stop ends the gateway and lets its sandboxes live.
func (f *fixture) stop() {
	if f.s == nil {
		return
	}
	f.client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	if err := f.s.Shutdown(ctx); err != nil {
		f.t.Error(err)
	}
	if err := <-f.served; err != nil {
		f.t.Error(err)
	}
	f.s = nil
}

// reply is an answer that was read.
type reply struct {
	*http.Response
	body []byte
}

func (r *reply) decode(t testing.TB, v any) {
	t.Helper()
	if err := json.Unmarshal(r.body, v); err != nil {
		t.Fatalf("%v: %s", err, r.body)
	}
}

// field is one of a JSON object.
func (r *reply) field(t testing.TB, name string) any {
	t.Helper()
	var m map[string]any
	r.decode(t, &m)
	return m[name]
}

// do sends a request with the key. A body that is no string is sent as JSON.
func (f *fixture) do(method, path string, body any, headers ...string) *reply {
	f.t.Helper()
	r, err := f.try(method, path, body, append([]string{"X-Api-Key", f.key}, headers...)...)
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

// try sends a request without a key. A header "Host" is that of the request;
// an empty value removes a header.
func (f *fixture) try(method, path string, body any, headers ...string) (*reply, error) {
	var in io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		in = strings.NewReader(b)
	case io.Reader:
		in = b
	default:
		j, err := json.Marshal(b)
		if err != nil {
			return nil, err
		}
		in = struct{ io.Reader }{bytes.NewReader(j)} // its length is not known: chunked, as SDKs do
	}
	req, err := http.NewRequest(method, "http://"+f.addr+path, in)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(headers); i += 2 {
		switch {
		case headers[i] == "Host":
			req.Host = headers[i+1]
		case headers[i+1] == "":
			req.Header.Del(headers[i])
		default:
			req.Header.Set(headers[i], headers[i+1])
		}
	}
	res, err := f.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return &reply{res, b}, err
}

// want fails unless the status is right, and the code in the body of an error.
func (f *fixture) want(r *reply, status int) *reply {
	f.t.Helper()
	if r.StatusCode != status {
		f.t.Fatalf("%s %s: status %d, want %d: %s", r.Request.Method, r.Request.URL.Path, r.StatusCode, status, r.body)
	}
	if status >= 400 {
		var e struct {
			Code    int
			Message string
		}
		if err := json.Unmarshal(r.body, &e); err != nil || e.Code != status || e.Message == "" {
			f.t.Fatalf("%s %s: body of an error is %q", r.Request.Method, r.Request.URL.Path, r.body)
		}
	}
	return r
}

// create makes a sandbox.
func (f *fixture) create(body map[string]any) api.Sandbox {
	f.t.Helper()
	b := map[string]any{"templateID": "base"}
	for k, v := range body {
		b[k] = v
	}
	var sb api.Sandbox
	f.want(f.do("POST", "/v2/sandboxes", b), 201).decode(f.t, &sb)
	return sb
}

// data sends a request to a port of a sandbox, by headers, with its token.
func (f *fixture) data(sb api.Sandbox, port int, method, path string, body any, headers ...string) *reply {
	f.t.Helper()
	r, err := f.try(method, path, body, append([]string{
		"E2b-Sandbox-Id", sb.SandboxID, "E2b-Sandbox-Port", fmt.Sprint(port), "X-Access-Token", sb.EnvdAccessToken,
	}, headers...)...)
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

// startBody is the body of process.Process/Start for a shell line.
func startBody(line string) []byte {
	msg, _ := json.Marshal(map[string]any{"process": map[string]any{"cmd": "/bin/sh", "args": []string{"-c", line}}, "stdin": false})
	b := make([]byte, 5, 5+len(msg))
	binary.BigEndian.PutUint32(b[1:], uint32(len(msg)))
	return append(b, msg...)
}

// events reads a stream of process events: output and the status of the end.
func events(r io.Reader, each func(stdout []byte)) (string, error) {
	for {
		var head [5]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return "", fmt.Errorf("stream ended without its end: %w", err)
		}
		msg := make([]byte, binary.BigEndian.Uint32(head[1:]))
		if _, err := io.ReadFull(r, msg); err != nil {
			return "", err
		}
		if head[0]&2 != 0 {
			return "", fmt.Errorf("end of stream before the end event: %s", msg)
		}
		var e struct {
			Event struct {
				Data *struct{ Stdout, Stderr string }
				End  *struct{ Status string }
			}
		}
		if err := json.Unmarshal(msg, &e); err != nil {
			return "", err
		}
		if d := e.Event.Data; d != nil {
			b, _ := base64.StdEncoding.DecodeString(d.Stdout + d.Stderr)
			each(b)
		}
		if e.Event.End != nil {
			return e.Event.End.Status, nil
		}
	}
}

// stream starts a shell line in a sandbox; the body holds its events.
func (f *fixture) stream(ctx context.Context, sb api.Sandbox, line string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, "POST", "http://"+f.addr+"/process.Process/Start", bytes.NewReader(startBody(line)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/connect+json")
	req.Header.Set("E2b-Sandbox-Id", sb.SandboxID)
	req.Header.Set("E2b-Sandbox-Port", "49983")
	req.Header.Set("X-Access-Token", sb.EnvdAccessToken)
	return f.client.Do(req)
}

// run runs a shell line in a sandbox and returns what it printed.
func (f *fixture) run(sb api.Sandbox, line string) string {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	res, err := f.stream(ctx, sb, line)
	if err != nil {
		f.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != 200 {
		b, _ := io.ReadAll(res.Body)
		f.t.Fatalf("start: %d %s", res.StatusCode, b)
	}
	var out bytes.Buffer
	status, err := events(res.Body, func(b []byte) { out.Write(b) })
	if err != nil || status != "exit status 0" {
		f.t.Fatalf("%q: %s, %v: %s", line, status, err, out.Bytes())
	}
	return out.String()
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(waitLimit); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}
