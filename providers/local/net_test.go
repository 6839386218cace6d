//go:build linux

package local

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/providers"
)

// A netWorld is what sandboxes with a list can and cannot reach: servers on the
// loopback of this machine, under names that only the lookup here knows.
type netWorld struct {
	p      *Provider
	good   *httptest.Server // good.test
	secret *httptest.Server // never to be reached
	port   int              // of good
}

const (
	goodText   = "you are in"
	secretText = "you are where you must not be"
)

func textServer(t testing.TB, text string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, text) }))
	t.Cleanup(s.Close)
	return s
}

func portOf(t testing.TB, s *httptest.Server) int {
	t.Helper()
	return s.Listener.Addr().(*net.TCPAddr).Port
}

// newNetWorld has the settings of a provider and what its names lead to.
func newNetWorld(t testing.TB, settings map[string]string, names map[string][]string) *netWorld {
	t.Helper()
	needIsolation(t)
	w := &netWorld{good: textServer(t, goodText), secret: textServer(t, secretText)}
	w.port = portOf(t, w.good)
	if settings == nil {
		settings = map[string]string{}
	}
	if _, ok := settings[settingHosts]; !ok {
		settings[settingHosts] = "good.test=127.0.0.1, sub.wild.test=127.0.0.1"
	}
	p, err := New(providers.Config{StateDir: testRoot(t), Settings: settings, Logger: testLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		checkNothingLeft(t, p.root)
	})
	p.net.lookup = func(_ context.Context, name string) ([]netip.Addr, error) {
		var out []netip.Addr
		for _, a := range names[name] {
			out = append(out, netip.MustParseAddr(a))
		}
		if out == nil {
			return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
		}
		return out, nil
	}
	w.p = p
	return w
}

// sandbox makes one with rules, in which PORT is that of the good server.
func (w *netWorld) sandbox(t testing.TB, rules ...string) *providers.Sandbox {
	t.Helper()
	for i := range rules {
		rules[i] = strings.ReplaceAll(rules[i], "PORT", strconv.Itoa(w.port))
	}
	return create(t, w.p, providers.CreateRequest{
		Network: &providers.NetworkPolicy{Mode: "list", Allow: rules}, Artifacts: []providers.Artifact{ownArtifact(t)},
	})
}

// play runs a part of the test program inside.
func play(t testing.TB, sb *providers.Sandbox, user, part string, args ...string) string {
	t.Helper()
	c, err := envd.New(&envd.Options{Dial: sb.Data.Dial, Token: sb.Data.Token.Reveal()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, _ := outputOf(ctx, t, c, &envd.StartOptions{Path: sb.Artifacts[ownArtifact(t).Digest], User: user,
		Env: map[string]string{envRole: part, envArgs: strings.Join(args, "\n")}}, math.MaxInt)
	return out
}

// TestAllowedPrograms lets real programs reach a permitted name and not
// another, with the proxy variables and without.
func TestAllowedPrograms(t *testing.T) {
	w := newNetWorld(t, nil, nil)
	sb := w.sandbox(t, "good.test:PORT", "*.wild.test:PORT")
	noProxy := "unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy NO_PROXY no_proxy NODE_USE_ENV_PROXY; "
	for _, c := range []struct{ tool, script string }{
		{"curl", "curl -sSf --max-time 20 URL"},
		{"wget", "wget -q -T 20 -t 1 -O - URL"},
		{"python3", "python3 -c 'import urllib.request; print(urllib.request.urlopen(\"URL\", timeout=20).read().decode(), end=\"\")'"},
		{"node", "NODE_NO_WARNINGS=1 node -e 'process.exitCode = 1; fetch(\"URL\").then(r => { if (!r.ok) throw r.status; return r.text() }).then(t => { process.stdout.write(t); process.exitCode = 0 }).catch(console.error)'"},
	} {
		t.Run(c.tool, func(t *testing.T) {
			if out, end := sh(t, sb, "command -v "+c.tool+" >/dev/null && "+c.tool+" --version >/dev/null"); end.ExitCode != 0 {
				needTool(t, c.tool, out)
			}
			for how, before := range map[string]string{"direct": noProxy, "proxy": ""} {
				for _, name := range []string{"good.test", "sub.wild.test"} {
					if out, _ := sh(t, sb, "exec 2>&1; "+before+strings.ReplaceAll(c.script, "URL", fmt.Sprintf("http://%s:%d/", name, w.port))); out != goodText {
						t.Errorf("%s, %s: %q", how, name, out)
					}
				}
				for _, target := range []string{
					fmt.Sprintf("http://other.test:%d/", w.port), "http://good.test/", fmt.Sprintf("http://wild.test:%d/", w.port),
					fmt.Sprintf("http://8.8.8.8:%d/", w.port), fmt.Sprintf("http://127.0.0.1:%d/", w.port), w.secret.URL,
				} {
					if out, end := sh(t, sb, "exec 2>&1; "+before+strings.ReplaceAll(c.script, "URL", target)); end.ExitCode == 0 || strings.Contains(out, goodText) || strings.Contains(out, secretText) {
						t.Errorf("%s, %s: status %d, %q", how, target, end.ExitCode, out)
					}
				}
			}
		})
	}
	t.Run("go", func(t *testing.T) {
		for _, user := range users() {
			if out := play(t, sb, user, "fetch", fmt.Sprintf("http://good.test:%d/", w.port)); out != "200 "+goodText {
				t.Errorf("%s: %q", user, out)
			}
			if out := play(t, sb, user, "fetch", fmt.Sprintf("http://other.test:%d/", w.port)); !strings.HasPrefix(out, "403 sandbox: no network rule permits it") {
				t.Errorf("%s: %q", user, out)
			}
		}
	})
	t.Run("curl says why", func(t *testing.T) {
		if _, err := exec.LookPath("curl"); err != nil {
			needTool(t, "curl", "")
		}
		out, _ := sh(t, sb, fmt.Sprintf("curl -sS http://other.test:%d/", w.port))
		if want := fmt.Sprintf("no network rule permits it; the rule would be \"other.test:%d\"", w.port); !strings.Contains(out, want) {
			t.Errorf("%q", out)
		}
	})
}

// needTool skips the test where a program is missing. In CI that is a failure.
func needTool(t testing.TB, name, detail string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("%s is missing inside: %s", name, detail)
	}
	t.Skipf("no %s: %s", name, detail)
}

func testLogger(t testing.TB) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

func init() {
	roles["fetch"] = func() error {
		r, err := http.Get(os.Getenv(envArgs))
		if err != nil {
			return err
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		fmt.Print(r.StatusCode, " ", string(b))
		return err
	}
}
