package e2b

import (
	"errors"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/fakes/e2bcloud"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// A data plane that has no name, or that nobody vouches for, is not waited for;
// the error says what to set, and nothing is left.
func TestDataPlaneThatCannotBe(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.NotFoundHandler())
	srv.Config.ErrorLog = log.New(t.Output(), "", 0)
	srv.StartTLS()
	defer srv.Close()
	for _, c := range []struct{ name, sandbox, says, hint string }{
		{"no such host", "http://sandboxes.invalid", "host sandboxes.invalid is not known", "E2B_SANDBOX_URL"},
		{"certificate", srv.URL, "the certificate of " + strings.TrimPrefix(srv.URL, "https://") + " is not trusted", "SANDBOX_CA_FILE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cloud := newCloud(t, e2bcloud.Behaviour{})
			set := to(cloud.URL, cloud.Key)
			set[SettingSandboxURL] = c.sandbox
			p := openE2B(t, v1(), set)
			p.testOnlyReadyLimit = 30 * time.Second
			start := time.Now()
			_, err := p.Create(t.Context(), providers.CreateRequest{})
			e, ok := errors.AsType[*errdefs.Error](err)
			if ok && c.name == "no such host" && strings.Contains(e.Message, "did not become ready") {
				t.Skip("names cannot be looked up here: ", err)
			}
			if !ok || e.Code != "E2009" || !strings.Contains(e.Message, c.says) || !strings.Contains(e.Hint(), c.hint) {
				t.Errorf("%v", err)
			}
			if d := time.Since(start); d > 20*time.Second {
				t.Errorf("it took %v", d)
			}
			if n := cloud.Living(); n != 0 {
				t.Errorf("%d sandboxes are left", n)
			}
		})
	}
}

// What debug mode cannot give is said before anything is used.
func TestDebugGivesNothing(t *testing.T) {
	p := openE2B(t, Cloud(), map[string]string{"debug": "true", "sandbox_url": "http://127.0.0.1:1"})
	for name, req := range map[string]providers.CreateRequest{
		"Env":      {Env: map[string]string{"A": "1"}},
		"Metadata": {Metadata: map[string]string{"A": "1"}},
		"Lifetime": {Lifetime: time.Minute},
		"CPU":      {Resources: providers.Resources{CPUMilli: 1}},
		"Network":  {Network: &providers.NetworkPolicy{Mode: "none"}},
	} {
		if _, err := p.Create(t.Context(), req); errdefs.CodeOf(err) != "E8004" || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An error about the key says where that is from.
func TestKeyIsNamed(t *testing.T) {
	for _, key := range []string{"sk-other", `"e2b_00"`, "e2b_0\x010"} {
		_, err := open(Cloud(), providers.Config{Settings: map[string]string{SettingAPIKey: key, SettingAPIKeySource: "environment E2B_API_KEY"}})
		if errdefs.CodeOf(err) != "E1001" || !strings.Contains(err.Error(), "the API key from environment E2B_API_KEY ") {
			t.Errorf("%q: %v", key, err)
		}
	}
}

// A sandbox that is gone when its end is due has expired, also where the service
// does not say so and counts from a moment earlier.
func TestGoneAtItsEnd(t *testing.T) {
	p := openE2B(t, v1(), to("http://127.0.0.1:1", testKey))
	gone := &errdefs.Error{Code: "E2020", Op: "get sandbox", Message: "sandbox abc is not there (404)"}
	for left, want := range map[time.Duration]errdefs.Code{-time.Minute: "E2021", time.Second: "E2021", time.Minute: "E2020"} {
		p.known.update("abc", func(f *fact) { f.expires = time.Now().Add(left) })
		err := p.gone("get sandbox", "abc", gone)
		if errdefs.CodeOf(err) != want || !errors.Is(err, gone) && want == "E2021" || strings.Count(err.Error(), "abc") != 1 {
			t.Errorf("%v left: %v, want %s", left, err, want)
		}
	}
}
