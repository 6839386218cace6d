package e2b

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/internal/fakes/e2bcloud"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// v1 is the profile that the cloud of the tests speaks.
func v1() Profile {
	p := Cloud()
	p.Version, p.Secure, p.Metrics = api.V1, true, false
	p.Headers = http.Header{"Authorization": {"Basic dXNlcjo="}}
	p.ListLag = time.Second
	return p
}

// A lost answer is looked up: one sandbox, and no second request.
func TestLostAnswer(t *testing.T) {
	c := newCloud(t, e2bcloud.Behaviour{ListLag: 500 * time.Millisecond})
	p := openE2B(t, v1(), to(c.URL, c.Key))
	c.LoseAnswers(1)
	sb, err := p.Create(t.Context(), providers.CreateRequest{RequestID: "lost-1", Metadata: map[string]string{"a": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	if n, r := c.Living(), c.Requests("POST /sandboxes"); n != 1 || r != 1 {
		t.Errorf("%d sandboxes after %d creations", n, r)
	}
	if status, err := p.health(t.Context(), sb.Data); err != nil || status != 204 {
		t.Errorf("health: %d, %v", status, err)
	}
	if err := p.Kill(t.Context(), sb.ID); err != nil {
		t.Error(err)
	}
}

// Only for an identity that may have been used is anything looked up before.
func TestNewIDIsNotLookedUp(t *testing.T) {
	c := newCloud(t, e2bcloud.Behaviour{})
	p := openE2B(t, v1(), to(c.URL, c.Key))
	for i, req := range []providers.CreateRequest{{RequestID: "new-1", NewID: true}, {RequestID: "old-1"}} {
		sb, err := p.Create(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if n := c.Requests("GET /v2/sandboxes"); n != i {
			t.Errorf("%+v: %d lookups so far, want %d", req, n, i)
		}
		if err := p.Kill(t.Context(), sb.ID); err != nil {
			t.Error(err)
		}
	}
}

// An answer that is lost when nobody waits any more leaves nothing either.
func TestLostAndCancelled(t *testing.T) {
	c := newCloud(t, e2bcloud.Behaviour{ListLag: 300 * time.Millisecond, CreateTime: 300 * time.Millisecond})
	p := openE2B(t, v1(), to(c.URL, c.Key))
	for _, lose := range []int{0, 1} {
		c.LoseAnswers(lose)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond) // the creation is under way
		_, err := p.Create(ctx, providers.CreateRequest{RequestID: "cancelled"})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		if n := c.Living(); n != 0 {
			t.Errorf("lost %d: %d sandboxes are left", lose, n)
		}
	}
}

func TestNeverReady(t *testing.T) {
	c := newCloud(t, e2bcloud.Behaviour{NeverReady: true})
	p := openE2B(t, v1(), to(c.URL, c.Key))
	p.testOnlyReadyLimit = 3 * time.Second // enough for an answer
	_, err := p.Create(t.Context(), providers.CreateRequest{RequestID: "r"})
	if !errors.Is(err, errdefs.ErrNotReady) || !strings.Contains(err.Error(), "last answer 502 from 127.0.0.1") {
		t.Error(err)
	}
	if n := c.Living(); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}

func TestForeignDomain(t *testing.T) {
	c := newCloud(t, e2bcloud.Behaviour{ForeignDomain: "evil.example"})
	set := to(c.URL, c.Key)
	set[SettingSandboxURL], set[SettingDomain] = "", "e2b.app"
	p := openE2B(t, v1(), set)
	_, err := p.Create(t.Context(), providers.CreateRequest{RequestID: "r"})
	if errdefs.CodeOf(err) != "E8006" || !strings.Contains(err.Error(), "evil.example") {
		t.Error(err)
	}
	if n := c.Living(); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}

func TestOldEnvd(t *testing.T) {
	c := newCloud(t, e2bcloud.Behaviour{EnvdVersion: "0.0.9"})
	p := openE2B(t, v1(), to(c.URL, c.Key))
	if _, err := p.Create(t.Context(), providers.CreateRequest{RequestID: "r"}); errdefs.CodeOf(err) != "E2004" {
		t.Error(err)
	}
	c.Behave(func(b *e2bcloud.Behaviour) { b.EnvdVersion = "0.3.9" })
	sb, err := p.Create(t.Context(), providers.CreateRequest{RequestID: "r"})
	if err != nil || sb.DefaultUser != "user" || sb.RuntimeVersion != "0.3.9" {
		t.Fatalf("%+v, %v", sb, err)
	}
	if err := p.Kill(t.Context(), sb.ID); err != nil {
		t.Error(err)
	}
	if n := c.Living(); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}

// Rate limits are waited for; a cleanup that fails once is repeated.
func TestPatience(t *testing.T) {
	c := newCloud(t, e2bcloud.Behaviour{})
	p := openE2B(t, v1(), to(c.URL, c.Key))
	c.LimitRate("1", "")
	sb, err := p.Create(t.Context(), providers.CreateRequest{})
	if err != nil || c.Requests("POST /sandboxes") != 3 {
		t.Fatalf("%v after %d requests", err, c.Requests("POST /sandboxes"))
	}
	n := 0
	c.Behave(func(b *e2bcloud.Behaviour) {
		b.Control = func(w http.ResponseWriter, r *http.Request) bool {
			if n++; n > 1 {
				return false
			}
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
	})
	if err := p.Kill(t.Context(), sb.ID); err != nil || c.Living() != 0 {
		t.Errorf("%v, %d are left", err, c.Living())
	}
}

// Refusals to pause name the sandbox's end where that is why, and are "not
// supported" otherwise where the profile says so.
func TestPauseRefused(t *testing.T) {
	c := newCloud(t, e2bcloud.Behaviour{PauseRefused: true})
	profile := v1()
	profile.PauseRefusals = true
	p := openE2B(t, profile, to(c.URL, c.Key))
	sb, err := p.Create(t.Context(), providers.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Pause(t.Context(), sb.ID); !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "not on the list") {
		t.Error(err)
	}
	if err := p.Kill(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	if err := p.Pause(t.Context(), sb.ID); !errors.Is(err, errdefs.ErrKilled) {
		t.Error(err)
	}
}

// States that nobody knows are unknown; none at all is no answer.
func TestStates(t *testing.T) {
	state := ""
	c := newCloud(t, e2bcloud.Behaviour{Control: func(w http.ResponseWriter, r *http.Request) bool {
		one := `{"sandboxID":"abc","templateID":"t","state":` + state + `}`
		if r.URL.Path == "/v2/sandboxes" {
			one = "[" + one + "]"
		}
		w.Write([]byte(one))
		return true
	}})
	p := openE2B(t, v1(), to(c.URL, c.Key))
	for in, want := range map[string]providers.State{
		`"running"`: providers.StateRunning, `"paused"`: providers.StatePaused, `"snapshotting"`: providers.StateUnknown, `""`: "", `null`: "", `7`: "",
	} {
		state = in
		sb, err := p.Get(t.Context(), "abc")
		page, lerr := p.List(t.Context(), providers.ListRequest{})
		if want == "" {
			if errdefs.CodeOf(err) != "E8006" || errdefs.CodeOf(lerr) != "E8006" {
				t.Errorf("state %s: %v; %v", in, err, lerr)
			}
			continue
		}
		if err != nil || sb.State != want || lerr != nil || page.Sandboxes[0].State != want {
			t.Errorf("state %s: %+v, %v; %+v, %v", in, sb, err, page, lerr)
		}
		if has := sb != nil && sb.Data.URL != ""; has != (want == providers.StateRunning) {
			t.Errorf("state %s has an endpoint: %v", in, has)
		}
	}
}

// What a client asks for and the service cannot do costs no request.
func TestRefusedBeforeAnyRequest(t *testing.T) {
	c := newCloud(t, e2bcloud.Behaviour{})
	p := openE2B(t, v1(), to(c.URL, c.Key))
	bad := "\xff"
	for name, r := range map[string]struct {
		req  providers.CreateRequest
		code errdefs.Code
	}{
		"image":          {providers.CreateRequest{Image: "busybox"}, "E8004"},
		"processes":      {providers.CreateRequest{Resources: providers.Resources{Processes: 1}}, "E8004"},
		"GPU":            {providers.CreateRequest{Resources: providers.Resources{GPU: "a"}}, "E8004"},
		"volume":         {providers.CreateRequest{Volumes: []providers.Volume{{Name: "v", Path: "/v"}}}, "E8004"},
		"user":           {providers.CreateRequest{User: "root"}, "E8004"},
		"directory":      {providers.CreateRequest{WorkDir: "/"}, "E8004"},
		"artifact":       {providers.CreateRequest{Artifacts: []providers.Artifact{{}}}, "E8004"},
		"require":        {providers.CreateRequest{Require: []string{"seccomp"}}, "E2012"},
		"host network":   {providers.CreateRequest{Network: &providers.NetworkPolicy{Mode: "host"}}, "E8004"},
		"port of a list": {providers.CreateRequest{Network: &providers.NetworkPolicy{Mode: "list", Allow: []string{"a.com:443"}}}, "E8004"},
		"network":        {providers.CreateRequest{Network: &providers.NetworkPolicy{Mode: "x"}}, "E2011"},
		"lifetime":       {providers.CreateRequest{Lifetime: -1}, "E2011"},
		"long lifetime":  {providers.CreateRequest{Lifetime: 1 << 62}, "E2011"},
		"not UTF-8":      {providers.CreateRequest{Env: map[string]string{"A": bad}}, "E2011"},
		"own metadata":   {providers.CreateRequest{Metadata: map[string]string{metaRequest: "x"}}, "E2011"},
		"request id":     {providers.CreateRequest{RequestID: "a\nb"}, "E2011"},
	} {
		if _, err := p.Create(t.Context(), r.req); errdefs.CodeOf(err) != r.code {
			t.Errorf("%s: %v, want %s", name, err, r.code)
		}
	}
	if n := c.Requests("POST /sandboxes") + c.Requests("GET /v2/sandboxes"); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// A size is what the sandbox must have at least: the template gives it, or the
// sandbox is removed.
func TestSizeAsked(t *testing.T) {
	c := newCloud(t, e2bcloud.Behaviour{})
	p := openE2B(t, v1(), to(c.URL, c.Key))
	sb, err := p.Create(t.Context(), providers.CreateRequest{Resources: providers.Resources{CPUMilli: 100, MemoryMiB: 64}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	for _, r := range []providers.Resources{{CPUMilli: 1 << 40}, {MemoryMiB: 1 << 40}, {DiskMiB: 1 << 40}} {
		if _, err := p.Create(t.Context(), providers.CreateRequest{Resources: r}); errdefs.CodeOf(err) != "E8004" {
			t.Errorf("%+v: %v, want E8004", r, err)
		}
	}
	if n := c.Living(); n != 0 {
		t.Errorf("%d sandboxes live on", n)
	}
}

// The control plane fails in every way at every call: an error with a code,
// soon, and never a success.
func TestHostileControlPlane(t *testing.T) {
	ways := map[string]func(w http.ResponseWriter, r *http.Request){
		"cut":     func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) },
		"garbage": func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("\x00\xffgarbage")) },
		"page":    func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("<html><form>log in</form></html>")) },
		"half": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			w.Write([]byte(`{"sandboxID":"ab`))
		},
		"broken":                      func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) },
		"nothing":                     func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(201) },
		"not found by something else": func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) },
		"stall": func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
	}
	for name, way := range ways {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			c := newCloud(t, e2bcloud.Behaviour{Control: func(w http.ResponseWriter, r *http.Request) bool { way(w, r); return true }})
			set := to(c.URL, c.Key)
			set[SettingHTTPTimeout], set[SettingMaxRetries] = "300ms", "1"
			profile := v1()
			profile.ListLag = 100 * time.Millisecond
			p := openE2B(t, profile, set)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			calls := map[string]func() error{
				"get":     func() error { _, err := p.Get(ctx, "abc"); return err },
				"list":    func() error { _, err := p.List(ctx, providers.ListRequest{}); return err },
				"connect": func() error { _, err := p.Connect(ctx, "abc", providers.ConnectRequest{}); return err },
				"life":    func() error { _, err := p.SetLifetime(ctx, "abc", time.Minute); return err },
				"port":    func() error { _, err := p.Port(ctx, "abc", 80); return err },
				"usage":   func() error { _, err := metered{p}.Usage(ctx, "abc"); return err },
			}
			if name != "nothing" { // an empty answer is the right one to these
				calls["kill"] = func() error { return p.Kill(ctx, "abc") }
			}
			if name != "stall" && name != "nothing" {
				calls["pause"] = func() error { return p.Pause(ctx, "abc") }
			}
			if name != "stall" { // these are waited for longer than a test lasts
				calls["create"] = func() error { _, err := p.Create(ctx, providers.CreateRequest{}); return err }
			}
			for what, call := range calls {
				start := time.Now()
				err := call()
				switch code := errdefs.CodeOf(err); code {
				case "E5001", "E5002", "E5003", "E8000", "E8006", "E8011", "E2000":
				default:
					t.Errorf("%s: %v", what, err)
				}
				if d := time.Since(start); d > 20*time.Second {
					t.Errorf("%s took %v", what, d)
				}
			}
		})
	}
}

// The data plane fails in every way while a creation waits for it: E2009 with
// what came, soon, and nothing is left.
func TestHostileDataPlane(t *testing.T) {
	for name, way := range map[string]func(w http.ResponseWriter, r *http.Request){
		"cut":      func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"page":     func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("<html>welcome</html>")) },
		"OK":       func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("OK")) },
		"redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
		"refused":  func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
		"stall":    func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"endless": func(w http.ResponseWriter, r *http.Request) {
			for b := make([]byte, 1<<16); r.Context().Err() == nil; {
				if _, err := w.Write(b); err != nil {
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCloud(t, e2bcloud.Behaviour{Data: func(w http.ResponseWriter, r *http.Request) bool { way(w, r); return true }})
			p := openE2B(t, v1(), to(c.URL, c.Key))
			p.testOnlyReadyLimit = 300 * time.Millisecond
			start := time.Now()
			sb, err := p.Create(t.Context(), providers.CreateRequest{})
			if !errors.Is(err, errdefs.ErrNotReady) || sb != nil {
				t.Errorf("%+v, %v", sb, err)
			}
			if d := time.Since(start); d > 20*time.Second {
				t.Errorf("it took %v", d)
			}
			if n := c.Living(); n != 0 {
				t.Errorf("%d sandboxes are left", n)
			}
		})
	}
}
