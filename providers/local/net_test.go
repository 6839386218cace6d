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
	"slices"
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
	guest  bool             // in gVisor
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
	req := providers.CreateRequest{
		Network: &providers.NetworkPolicy{Mode: "list", Allow: rules}, Artifacts: []providers.Artifact{ownArtifact(t)},
	}
	if w.guest {
		req.Isolation = isolationGVisor
	}
	return create(t, w.p, req)
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
func TestAllowedPrograms(t *testing.T) { bothEngines(t, nil, allowedPrograms) }

// bothEngines runs a test of networks in sandboxes of each engine.
func bothEngines(t *testing.T, names map[string][]string, test func(*testing.T, *netWorld)) {
	t.Run(engineNative, func(t *testing.T) { test(t, newNetWorld(t, nil, names)) })
	t.Run(engineGVisor, func(t *testing.T) {
		needGVisor(t)
		w := newNetWorld(t, nil, names)
		w.guest = true
		test(t, w)
	})
}

func allowedPrograms(t *testing.T, w *netWorld) {
	sb := w.sandbox(t, "good.test:PORT", "*.wild.test:PORT")
	noProxy := "unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy NO_PROXY no_proxy NODE_USE_ENV_PROXY; "
	tools := []struct{ tool, script string }{
		{"curl", "curl -sSf --max-time 20 URL"},
		{"wget", "wget -q -T 20 -t 1 -O - URL"},
		{"python3", "python3 -c 'import urllib.request; print(urllib.request.urlopen(\"URL\", timeout=20).read().decode(), end=\"\")'"},
		{"node", "NODE_NO_WARNINGS=1 node -e 'process.exitCode = 1; fetch(\"URL\").then(r => { if (!r.ok) throw r.status; return r.text() }).then(t => { process.stdout.write(t); process.exitCode = 0 }).catch(console.error)'"},
	}
	permitted := []string{"sub.wild.test", "good.test"}
	denied := []string{
		fmt.Sprintf("http://other.test:%d/", w.port), w.secret.URL, "http://good.test/", fmt.Sprintf("http://wild.test:%d/", w.port),
		fmt.Sprintf("http://8.8.8.8:%d/", w.port), fmt.Sprintf("http://127.0.0.1:%d/", w.port),
	}
	if w.guest { // in which programs start slowly, and whose client is the same
		tools, permitted, denied = tools[:3], permitted[:1], denied[:2]
	}
	for _, c := range tools {
		t.Run(c.tool, func(t *testing.T) {
			if out, end := sh(t, sb, "command -v "+c.tool+" >/dev/null && "+c.tool+" --version >/dev/null"); end.ExitCode != 0 {
				needTool(t, c.tool, out)
			}
			for how, before := range map[string]string{"direct": noProxy, "proxy": ""} {
				for _, name := range permitted {
					if out, _ := sh(t, sb, "exec 2>&1; "+before+strings.ReplaceAll(c.script, "URL", fmt.Sprintf("http://%s:%d/", name, w.port))); out != goodText {
						t.Errorf("%s, %s: %q", how, name, out)
					}
				}
				for _, target := range denied {
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

// TestNetworkRoutes connects to addresses that rules name, and to those beside
// them: which are let through is seen by whether there is a way to them at all.
func TestNetworkRoutes(t *testing.T) { bothEngines(t, nil, networkRoutes) }

func networkRoutes(t *testing.T, w *netWorld) {
	rules := []string{"192.0.2.1:PORT", "192.0.2.0/25:PORT", "192.0.2.0/24:PORT", "198.51.100.7:PORT", "[2001:db8::7]:PORT", "2001:db8:1::/48:PORT"}
	for i := range 256 - len(rules) { // as many as there may be
		rules = append(rules, fmt.Sprintf("10.%d.0.0/16:%d", i, 20000+i%63))
	}
	sb := w.sandbox(t, rules...)
	port := strconv.Itoa(w.port)
	ways := []string{"192.0.2.1", "192.0.2.0", "192.0.2.130", "192.0.2.255", "198.51.100.7", "2001:db8::7"}
	none := []string{"192.0.3.1", "198.51.100.8", "2001:db8::8"}
	if wide := "2001:db8:1::9"; w.guest { // which the report says
		none = append(none, wide)
	} else {
		ways = append(ways, wide)
	}
	r, err := w.p.Report(t.Context(), sb.ID)
	if says := slices.ContainsFunc(r.Degraded, func(d providers.Degradation) bool { return d.What == "network" }); err != nil || says != w.guest || r.Network != netList {
		t.Errorf("%+v, %v", r, err)
	}
	for i, addr := range slices.Concat(ways, none) {
		out := play(t, sb, "user", "reach", net.JoinHostPort(addr, port))
		// What cannot be reached from here is reset, perhaps before it is looked at.
		if way := out == "open\n" || strings.Contains(out, "reset by peer"); way != (i < len(ways)) || !way && !strings.Contains(out, "network is unreachable") {
			t.Errorf("%s: %q", addr, out)
		}
	}
}

func init() {
	roles["reach"] = func() error {
		c, err := net.DialTimeout("tcp", os.Getenv(envArgs), 5*time.Second)
		if err != nil {
			fmt.Println(err)
			return nil
		}
		fmt.Println("open")
		return c.Close()
	}
}

// TestNetworkStreams looks at what connections do besides carrying a request:
// they end one direction at a time, and everything of them is free afterwards.
func TestNetworkStreams(t *testing.T) { bothEngines(t, nil, networkStreams) }

const streamBytes = 4 << 20

func networkStreams(t *testing.T, w *netWorld) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serveStream(c.(*net.TCPConn))
		}
	}()
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	sb := w.sandbox(t, "good.test:"+port)
	want := fmt.Sprintf("count: %d\nsend: %d\nend: true\nleft: true\n", streamBytes, streamBytes)
	if out := play(t, sb, "user", "streams", "good.test:"+port); out != want {
		t.Errorf("%q, want %q", out, want)
	}
	w.p.mu.Lock()
	e := w.p.live[sb.ID].egress
	w.p.mu.Unlock()
	eventually(t, "nothing is open", func() bool { return len(e.inSlots) == 0 && len(e.outSlots) == 0 })
	if _, err := w.p.Get(t.Context(), sb.ID); err != nil {
		t.Error(err)
	}
}

// serveStream does what the first byte says.
func serveStream(c *net.TCPConn) {
	defer c.Close()
	var what [1]byte
	if _, err := io.ReadFull(c, what[:]); err != nil {
		return
	}
	switch what[0] {
	case 1: // count until the end, then answer
		n, _ := io.Copy(io.Discard, c)
		fmt.Fprint(c, n)
	case 2: // send
		c.Write(make([]byte, streamBytes))
	case 3: // end at once
		c.SetLinger(0)
	case 4: // wait for the end of the other side
		io.Copy(io.Discard, c)
	}
}

func init() {
	roles["streams"] = func() error {
		dial := func(what byte) (*net.TCPConn, error) {
			c, err := net.Dial("tcp", os.Getenv(envArgs))
			if err != nil {
				return nil, err
			}
			_, err = c.Write([]byte{what})
			return c.(*net.TCPConn), err
		}
		c, err := dial(1)
		if err != nil {
			return err
		}
		c.Write(make([]byte, streamBytes))
		c.CloseWrite()
		b, err := io.ReadAll(c)
		fmt.Println("count:", string(b))
		if err != nil {
			return err
		}
		if c, err = dial(2); err != nil {
			return err
		}
		n, err := io.Copy(io.Discard, c)
		fmt.Println("send:", n)
		if err != nil {
			return err
		}
		if c, err = dial(3); err != nil {
			return err
		}
		n, _ = io.Copy(io.Discard, c)
		fmt.Println("end:", n == 0)
		c.Close()
		if c, err = dial(4); err != nil {
			return err
		}
		c.SetLinger(0)
		fmt.Println("left:", c.Close() == nil)
		return nil
	}
}
