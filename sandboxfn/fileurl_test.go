package sandboxfn

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/runtime/server"
)

// addressed is a sandbox that is reached over TCP, by its token; an empty one
// asks for none.
func addressed(t *testing.T, token string) *Sandbox {
	t.Helper()
	srv, err := server.New(&server.Options{Token: token, AllowNoToken: true, DefaultWorkDir: t.TempDir()})
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		must(t, srv.Shutdown(ctx))
		must(t, <-served)
	})
	return create(t, hostClient(t, &hostProvider{edit: func(_ *providers.CreateRequest, s *providers.Sandbox) {
		s.Data = providers.Endpoint{URL: "http://" + l.Addr().String(), Token: providers.Secret(token), Channels: true}
	}}, nil), nil)
}

// ask requests an address as a stranger would.
func ask(t *testing.T, method, address, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
	must(t, err)
	req.Header.Set("Content-Type", "application/octet-stream")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(b)
}

// What is signed is exactly what is allowed.
func TestFileURL(t *testing.T) {
	sb := addressed(t, "the token/of+this sandbox")
	f, dir := sb.FS(t.Context()), workDir(t, sb)
	for i, name := range []string{"plain", "a b+c%d", "ü€😀.txt", `"q'\`, "new\nline", "%2f&x=y#z?;"} {
		path := dir + "/" + name
		must(t, f.WriteFile(path, []byte(name), 0))
		read, err := sb.FileURL(path, &FileURLOptions{Expires: time.Hour})
		must(t, err)
		write, err := sb.FileURL(path, &FileURLOptions{Write: true})
		must(t, err)
		if status, got := ask(t, "GET", read, ""); status != 200 || got != name {
			t.Errorf("%q: got %d, %q", name, status, got)
		}
		if status, got := ask(t, "POST", write, "new "+name); status != 200 {
			t.Errorf("%q: got %d, %s", name, status, got)
		}
		if got, err := f.ReadFile(path); err != nil || string(got) != "new "+name {
			t.Errorf("%q: holds %q, %v", name, got, err)
		}
		for _, c := range []struct{ method, address string }{{"GET", write}, {"POST", read}, {"PUT", write}, {"HEAD", read}} {
			if status, _ := ask(t, c.method, c.address, "x"); status != 401 {
				t.Errorf("%q: %s of an address for something else: got %d", name, c.method, status)
			}
		}
		if i < 3 { // altering all of them takes long
			testAltered(t, read)
		}
	}
	if _, err := sb.FileURL("x", &FileURLOptions{Expires: -1}); err == nil {
		t.Error("an address that ended before it was made")
	}
	if _, err := sb.FileURL("", nil); err == nil {
		t.Error("an address of no path")
	}
	home, err := sb.FileURL("~/x/../in home", nil)
	must(t, err)
	must(t, f.WriteFile("in home", []byte("h"), 0))
	defer f.Remove("in home")
	if status, got := ask(t, "GET", home, ""); status != 200 || got != "h" {
		t.Errorf("relative to the home: got %d, %q", status, got)
	}
}

// testAltered changes each parameter of an address at each place.
func testAltered(t *testing.T, address string) {
	t.Helper()
	u, err := url.Parse(address)
	must(t, err)
	q := u.Query()
	try := func(what string, q url.Values) {
		t.Helper()
		v := *u
		v.RawQuery = q.Encode()
		if status, got := ask(t, "GET", v.String(), ""); status != 401 && status != 400 {
			t.Errorf("%s: got %d, %q", what, status, got)
		}
	}
	with := func(key string, values ...string) url.Values {
		c := url.Values{}
		for k, v := range q {
			c[k] = slices.Clone(v)
		}
		if c[key] = values; values == nil {
			delete(c, key)
		}
		return c
	}
	for key := range q {
		value := q.Get(key)
		step := max(1, len(value)/12)
		for i := 0; i < len(value); i += step {
			other := byte('1')
			if value[i] == other {
				other = '2'
			}
			try(fmt.Sprintf("%s changed at %d", key, i), with(key, value[:i]+string(other)+value[i+1:]))
			try(fmt.Sprintf("%s cut at %d", key, i), with(key, value[:i]+value[i+1:]))
		}
		try(key+" longer", with(key, value+"1"))
		try(key+" with a sign", with(key, "+"+value))
		try(key+" with a zero", with(key, "0"+value))
		try(key+" gone", with(key))
		try(key+" empty", with(key, ""))
		try(key+" twice", with(key, "", value))
	}
	try("another user", with("username", "root"))
	try("no user by name", with("username", ""))
}

func TestFileURLExpires(t *testing.T) {
	sb := addressed(t, "token")
	f, dir := sb.FS(t.Context()), workDir(t, sb)
	must(t, f.WriteFile(dir+"/f", []byte("x"), 0))
	address, err := sb.FileURL(dir+"/f", &FileURLOptions{Expires: time.Second})
	must(t, err)
	u, err := url.Parse(address)
	must(t, err)
	for {
		before := time.Now().Unix()
		status, got := ask(t, "GET", address, "")
		after := time.Now().Unix()
		end := u.Query().Get("signature_expiration")
		switch {
		case fmt.Sprint(after) <= end && status != 200:
			t.Fatalf("before its end: got %d, %s", status, got)
		case fmt.Sprint(before) > end:
			if status != 401 || !strings.Contains(got, "expired") {
				t.Errorf("after its end: got %d, %s", status, got)
			}
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func TestFileURLWithoutToken(t *testing.T) {
	sb := addressed(t, "")
	f, dir := sb.FS(t.Context()), workDir(t, sb)
	must(t, f.WriteFile(dir+"/f g", []byte("x"), 0))
	address, err := sb.FileURL(dir+"/f g", nil)
	must(t, err)
	if status, got := ask(t, "GET", address, ""); status != 200 || got != "x" || strings.Contains(address, "signature") {
		t.Errorf("%s: got %d, %q", address, status, got)
	}
	if _, err := sb.FileURL(dir+"/f", &FileURLOptions{Expires: time.Hour}); CodeOf(err) != "E8004" || !strings.Contains(err.Error(), "token") {
		t.Errorf("got %v", err)
	}
}

// A sandbox of this machine has no address, and the error says so.
func TestFileURLOfThisMachine(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		if _, err := sb.FileURL("x", nil); CodeOf(err) != "E8004" || !strings.Contains(err.Error(), "no address") {
			t.Errorf("got %v", err)
		}
	})
}

// portProvider has an address for each sandbox beside the shared one.
type portProvider struct{ *hostProvider }

func (portProvider) Port(_ context.Context, id string, port int) (providers.Endpoint, error) {
	return providers.Endpoint{URL: fmt.Sprintf("https://%d-%s.example.com", port, id), Headers: http.Header{"X": {"y"}}}, nil
}

// Where requests are routed by headers, an address has to name the sandbox.
func TestFileURLNamesTheSandbox(t *testing.T) {
	sb := addressed(t, "token")
	sb.provider = portProvider{sb.provider.(*hostProvider)}
	address, err := sb.FileURL("/f", nil)
	if err != nil || !strings.HasPrefix(address, "https://49983-"+sb.ID()+".example.com/files?path=") {
		t.Errorf("got %s, %v", address, err)
	}
}
