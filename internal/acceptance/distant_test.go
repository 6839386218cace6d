package acceptance

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/acceptance/fns"
	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

// The tests of functions also run in sandboxes that are reached by an address
// alone, as those in a cloud are: "distant" speaks to a runtime of ours through
// a proxy, "foreign" to one that knows nothing of us.
func init() {
	for name, foreign := range map[string]bool{"distant": false, "foreign": true} {
		providers.Register(name, func(cfg providers.Config) (providers.Provider, error) {
			p, err := providers.Open("local", cfg)
			if err != nil {
				return nil, err
			}
			return newDistant(name, p, foreign)
		})
	}
}

// distant shows the sandboxes of a provider behind a proxy on TCP.
type distant struct {
	providers.Provider
	name    string
	foreign bool
	srv     *http.Server
	base    string
	served  sync.WaitGroup
	conns   sync.WaitGroup // a server does not wait for those that it closes

	mu    sync.Mutex
	boxes map[string]http.Handler // guarded by mu
}

func newDistant(name string, p providers.Provider, foreign bool) (*distant, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &distant{Provider: p, name: name, foreign: foreign, base: "http://" + l.Addr().String() + "/box/", boxes: map[string]http.Handler{}}
	d.srv = &http.Server{Handler: d, ConnState: func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			d.conns.Add(1)
		case http.StateClosed, http.StateHijacked:
			d.conns.Done()
		}
	}}
	d.served.Go(func() { d.srv.Serve(l) })
	return d, nil
}

func (d *distant) Name() string { return d.name }

func (d *distant) Close() error {
	err := d.Provider.Close()
	d.srv.Close()
	d.served.Wait()
	d.conns.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, h := range d.boxes {
		h.(*httputil.ReverseProxy).Transport.(*http.Transport).CloseIdleConnections()
	}
	return err
}

func (d *distant) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/box/"), "/")
	d.mu.Lock()
	h := d.boxes[id]
	d.mu.Unlock()
	if h == nil || d.foreign && strings.HasPrefix(path, "sandbox/") {
		http.NotFound(w, r)
		return
	}
	// An answer may begin before the request has been read to its end, which a
	// server of net/http has trouble with.
	var whole bytes.Buffer
	whole.Grow(int(max(r.ContentLength, 0)) + bytes.MinRead)
	if _, err := whole.ReadFrom(r.Body); err != nil {
		return
	}
	body := whole.Bytes()
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	if len(body) == 0 {
		r.Body = http.NoBody
	}
	http.StripPrefix("/box/"+id, h).ServeHTTP(w, r)
}

// behind puts the runtime of s behind the proxy.
func (d *distant) behind(s *providers.Sandbox, err error) (*providers.Sandbox, error) {
	if err != nil || s.Data.Dial == nil {
		return s, err
	}
	out := *s
	dial := s.Data.Dial
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "sandbox"})
	proxy.Transport = &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableCompression: true,
	}
	proxy.FlushInterval = -1
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	if d.foreign {
		proxy.ModifyResponse = func(res *http.Response) error {
			res.Header.Del("Sandbox-Features")
			return nil
		}
	}
	d.mu.Lock()
	d.boxes[s.ID] = proxy
	d.mu.Unlock()
	out.Data = providers.Endpoint{URL: d.base + s.ID, Token: s.Data.Token}
	out.Artifacts = nil
	return &out, nil
}

func (d *distant) Create(ctx context.Context, req providers.CreateRequest) (*providers.Sandbox, error) {
	return d.behind(d.Provider.Create(ctx, req))
}

func (d *distant) Connect(ctx context.Context, id string, req providers.ConnectRequest) (*providers.Sandbox, error) {
	return d.behind(d.Provider.Connect(ctx, id, req))
}

// TestElsewhere runs the tests of functions again, in a process of their own,
// where sandboxes are reached by address.
func TestElsewhere(t *testing.T) {
	if os.Getenv(sbtest.ProviderVariable) != "" {
		t.Skip("this is the run elsewhere")
	}
	sbtest.NeedSandbox(t)
	const always = "TestErrorIdentity|TestEnvironment|TestHowCallsGo|TestDuringCalls|TestBatches"
	for name, these := range map[string]string{
		"distant": always,
		"foreign": always + "|TestGrace|TestClasses|TestFiles|TestLogModes|TestNestedModes|TestPrinting|TestEnds|TestLargeValues",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // processes of their own, which wait for clocks most of the time
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run", "^("+these+")$", "-test.v")
			cmd.Env = append(os.Environ(), sbtest.ProviderVariable+"="+name)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			if !bytes.Contains(out, []byte("--- PASS: TestDuringCalls")) {
				t.Errorf("the tests did not run:\n%s", out)
			}
		})
	}
}

// BenchmarkElsewhere compares calls over channels on this machine, over channels
// by address, and over the process API.
func BenchmarkElsewhere(b *testing.B) {
	sbtest.NeedSandbox(b)
	for _, name := range []string{"local", "distant", "foreign"} {
		c, err := sandboxfn.NewClient(&sandboxfn.ClientOptions{Provider: name})
		if err != nil {
			b.Fatal(err)
		}
		ctx := sandboxfn.WithClient(b.Context(), c)
		if _, err := fns.Echo(ctx, nil); err != nil { // starts the worker
			b.Fatal(err)
		}
		for _, size := range []int{100, 1 << 20} {
			data := make([]byte, size)
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				for b.Loop() {
					if got, err := fns.Echo(ctx, data); err != nil || len(got) != size {
						b.Fatal(len(got), err)
					}
				}
			})
		}
		if err := c.Close(); err != nil {
			b.Error(err)
		}
	}
}
