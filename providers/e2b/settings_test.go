package e2b

import (
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const testKey = "e2b_0123456789abcdef0123456789abcdef01234567"

func TestSettings(t *testing.T) {
	for _, c := range []struct {
		name string
		set  map[string]string
		code errdefs.Code
		says string
	}{
		{"nothing", nil, "E1001", `no API key for provider "e2b": looked at SANDBOX_API_KEY, E2B_API_KEY`},
		{"blank key", map[string]string{"api_key": "  ", "api_key_source": "option, SANDBOX_API_KEY, profile \"work\""}, "E1001", `looked at option, SANDBOX_API_KEY, profile "work"`},
		{"key with a newline at its end", map[string]string{"api_key": testKey + "\n"}, "", ""},
		{"key in quotes", map[string]string{"api_key": `"` + testKey + `"`}, "E1001", "quotes"},
		{"key of another service", map[string]string{"api_key": "sk-secret-secret"}, "E1001", "does not have the form"},
		{"key of another service, let be", map[string]string{"api_key": "sk-secret-secret", "validate_api_key": "false"}, "", ""},
		{"setting that is none", map[string]string{"api_key": testKey, "api_ulr": "x"}, "E8007", "api_ulr"},
		{"retries", map[string]string{"api_key": testKey, "max_retries": "11"}, "E8007", "max_retries"},
		{"timeout", map[string]string{"api_key": testKey, "http_timeout": "soon"}, "E8007", "http_timeout"},
		{"switch", map[string]string{"api_key": testKey, "http2": "perhaps"}, "E8007", "http2"},
		{"domain", map[string]string{"api_key": testKey, "domain": "https://e2b.app"}, "E8007", "domain"},
		{"password in an address", map[string]string{"api_key": testKey, "api_url": "https://user:hunter2@api.e2b.app"}, "E8007", "password"},
		{"address without a domain", map[string]string{"api_key": testKey, "api_url": "https://gateway.example"}, "E8007", "domain"},
		{"debug without a key", map[string]string{"debug": "true"}, "", ""},
	} {
		p, err := open(Cloud(), providers.Config{Settings: c.set})
		if errdefs.CodeOf(err) != c.code || (err == nil) != (c.code == "") {
			t.Errorf("%s: %v, want %s", c.name, err, c.code)
		}
		if err != nil {
			for _, secret := range []string{testKey, "secret", "hunter2"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("%s shows a secret: %v", c.name, err)
				}
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v does not say %q", c.name, err, c.says)
			}
			continue
		}
		p.Close()
	}
}

// The addresses of both planes, from what is set.
func TestAddresses(t *testing.T) {
	f := fact{token: "tok", traffic: "tr"}
	for _, c := range []struct {
		name               string
		set                map[string]string
		api, runtime, port string
		dial               bool
	}{
		{"cloud", nil, "https://api.e2b.app", "https://sandbox.e2b.app", "https://8080-abc.e2b.app", false},
		{"other domain", map[string]string{"domain": "sandbox.example"}, "https://api.sandbox.example", "https://49983-abc.sandbox.example", "https://8080-abc.sandbox.example", false},
		{"domain with a port", map[string]string{"domain": "localhost:8443", "api_url": "https://localhost:8443"}, "https://localhost:8443", "https://49983-abc.localhost:8443", "https://8080-abc.localhost:8443", false},
		{"address of the API", map[string]string{"api_url": "https://api.e2b.dev"}, "https://api.e2b.dev", "https://sandbox.e2b.dev", "https://8080-abc.e2b.dev", false},
		{"gateway", map[string]string{"api_url": "http://127.0.0.1:3000"}, "http://127.0.0.1:3000", "http://127.0.0.1:3000", "http://127.0.0.1:3000", false},
		{"gateway on a socket", map[string]string{"api_url": "unix:/run/s"}, "unix:/run/s", "http://localhost", "http://localhost", true},
		{"one address for sandboxes", map[string]string{"sandbox_url": "https://sandboxes.example/x/"}, "https://api.e2b.app", "https://sandboxes.example/x", "https://sandboxes.example/x", false},
		{"debug", map[string]string{"debug": "true"}, "https://api.e2b.app", "http://localhost:49983", "http://localhost:49983", false},
	} {
		set := map[string]string{"api_key": testKey}
		for k, v := range c.set {
			set[k] = v
		}
		p, err := open(Cloud(), providers.Config{Settings: set})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		f.domain = p.opts.domain
		e, port := p.runtime("abc", f), p.at("abc", 8080, f)
		if p.opts.api.URL != c.api || e.URL != c.runtime || port.URL != c.port || (e.Dial != nil) != c.dial {
			t.Errorf("%s: %s, %s, %s, dial %v", c.name, p.opts.api.URL, e.URL, port.URL, e.Dial != nil)
		}
		if h := e.Headers; h.Get(api.HeaderSandboxID) != "abc" || h.Get(api.HeaderSandboxPort) != "49983" || h.Get(api.HeaderTraffic) != "" {
			t.Errorf("%s: headers of the runtime %v", c.name, h)
		}
		if h := port.Headers; h.Get(api.HeaderSandboxID) != "abc" || h.Get(api.HeaderSandboxPort) != "8080" || h.Get(api.HeaderTraffic) != "tr" || port.Token != "" {
			t.Errorf("%s: headers of a port %v", c.name, h)
		}
		p.Close()
	}
}

func TestDomainOf(t *testing.T) {
	p := openE2B(t, Cloud(), map[string]string{"api_key": testKey})
	text := func(s string) *string { return &s }
	for _, c := range []struct {
		in   *string
		want string
	}{
		{nil, "e2b.app"}, {text(""), "e2b.app"}, {text("e2b.app"), "e2b.app"}, {text("E2B.app."), "e2b.app"}, {text("eu.e2b.app"), "eu.e2b.app"},
		{text("evil.example"), ""}, {text("note2b.app"), ""}, {text("e2b.app.evil.example"), ""}, {text("evil.example/.e2b.app"), ""},
		{text("evil@x.e2b.app"), ""}, {text("evil.example:1?.e2b.app"), ""}, {text("a b.e2b.app"), ""},
	} {
		got, err := p.domainOf("test", "abc", c.in)
		if got != c.want || (err == nil) != (c.want != "") {
			in := "nothing"
			if c.in != nil {
				in = *c.in
			}
			t.Errorf("%q: %q, %v, want %q", in, got, err, c.want)
		}
	}
}

func FuzzDomain(f *testing.F) {
	f.Add("eu.e2b.app")
	f.Add("x/.e2b.app")
	f.Add("x\\.e2b.app:80")
	p, err := open(Cloud(), providers.Config{Settings: map[string]string{"api_key": testKey}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, in string) {
		d, err := p.domainOf("test", "abc", &in)
		if err != nil {
			return
		}
		u, _, err := api.ParseAddress("https://49983-abc." + d)
		if err != nil || u.Hostname() != "49983-abc."+d && !strings.Contains(d, ":") || !strings.HasSuffix(u.Hostname(), "e2b.app") {
			t.Fatalf("%q leads to %v, %v", in, u, err)
		}
	})
}

func TestVersions(t *testing.T) {
	for in, want := range map[string]bool{"0.3.9": true, "0.4.0": false, "0.10.0": false, "": false, "latest": false, "0.3": false, "0.3.9-rc1": true} {
		if got := olderThan(in, 0, 4, 0); got != want {
			t.Errorf("%q is older than 0.4.0: %v", in, got)
		}
	}
}

// Debug mode finds what listens on this machine and asks no control plane.
func TestDebug(t *testing.T) {
	p := openE2B(t, Cloud(), map[string]string{"debug": "true", "sandbox_url": "http://127.0.0.1:1"})
	if _, err := p.Create(t.Context(), providers.CreateRequest{}); errdefs.CodeOf(err) != "E2009" || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Error(err)
	}
	sb, err := p.Connect(t.Context(), "anything", providers.ConnectRequest{})
	if err != nil || sb.ID != debugID || sb.RuntimeVersion != debugVersion {
		t.Errorf("%+v, %v", sb, err)
	}
	if err := p.Kill(t.Context(), debugID); err != nil {
		t.Error(err)
	}
}
