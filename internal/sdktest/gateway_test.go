package sdktest

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	// go test must see what sandboxd is made of, or it reports an old result.
	_ "github.com/agent-sandbox/sandbox-go/internal/gateway"
	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
)

// patience is how long a test waits for what must happen. It is long, since
// the machine may be busy, and costs nothing when things go well.
const patience = 20 * time.Second

// build compiles sandboxd once for all tests of a process.
var build = sync.OnceValues(func() (string, error) {
	path := filepath.Join(binDir, "sandboxd")
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", path, "../../runtime/cmd/sandboxd").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build sandboxd: %w\n%s", err, out)
	}
	return path, nil
})

// binDir holds what tests build; TestMain makes and removes it.
var binDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "sdktest")
	if err != nil {
		panic(err)
	}
	binDir = dir
	code := sbtest.Main(m)
	os.RemoveAll(dir)
	os.Exit(code)
}

// A gateway is a running `sandboxd serve`.
type gateway struct {
	addr  string // host:port it listens on
	key   string
	pid   int
	roots *x509.CertPool // of its certificate; nil without TLS
}

// url is the base of the control plane.
func (g *gateway) url() string {
	if g.roots == nil {
		return "http://" + g.addr
	}
	return "https://" + g.addr
}

// startGateway runs sandboxd serve on loopback with a state directory of its
// own until the test ends. At the end nothing may be left of what it made.
func startGateway(t *testing.T, flags ...string) *gateway {
	t.Helper()
	sbtest.NeedSandbox(t)
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, append([]string{"serve", "--state-dir", stateDir(t), "--template", "code-interpreter-v1"}, flags...)...)
	cmd.Env = plainEnv()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	g := &gateway{pid: cmd.Process.Pid}
	log := &lockedBuffer{}
	addr, key := make(chan string, 1), make(chan string, 1)
	var readers sync.WaitGroup
	readers.Go(func() { watch(stderr, log, "sandboxd: listening on ", addr) })
	readers.Go(func() { watch(stdout, log, "E2B_API_KEY=", key) })
	t.Cleanup(func() {
		g.stop(t, cmd, &readers)
		if t.Failed() {
			t.Logf("sandboxd said at the end:\n%s", log.tail(8<<10))
		}
	})
	g.addr, g.key = await(t, log, addr), await(t, log, key)
	return g
}

// watch copies lines to log and sends what follows the prefix, the first time.
func watch(r io.Reader, log io.Writer, prefix string, found chan<- string) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		io.WriteString(log, lines.Text()+"\n")
		if rest, ok := strings.CutPrefix(lines.Text(), prefix); ok && found != nil {
			found <- rest
			found = nil
		}
	}
}

func await(t *testing.T, log *lockedBuffer, c <-chan string) string {
	t.Helper()
	select {
	case s := <-c:
		return s
	case <-time.After(patience):
		t.Fatalf("sandboxd is not ready:\n%s", log.String())
		return ""
	}
}

// stop reports and kills sandboxes that are left, and ends the gateway.
func (g *gateway) stop(t *testing.T, cmd *exec.Cmd, readers *sync.WaitGroup) {
	if g.key != "" {
		for _, id := range g.list(t) {
			t.Errorf("sandbox %s is left", id)
			g.do(t, http.MethodDelete, "/sandboxes/"+id)
		}
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(patience, func() {
		t.Error("sandboxd does not end when it is asked to")
		_ = cmd.Process.Kill()
	})
	readers.Wait()
	err := cmd.Wait()
	if late.Stop() && err != nil {
		t.Errorf("sandboxd ended with %v", err)
	}
}

// do sends a request to the control plane over a connection of its own.
func (g *gateway) do(t *testing.T, method, path string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequest(method, g.url()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", g.key)
	status, body, err := g.send(req)
	if err != nil {
		t.Errorf("%s %s: %v", method, path, err)
	}
	return status, body
}

// send sends a request over a connection of its own. Of the answer at most 1 MiB
// is read.
func (g *gateway) send(req *http.Request) (status int, body []byte, err error) {
	client := &http.Client{
		Timeout: patience,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{RootCAs: g.roots, ServerName: "api." + domain},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err = io.ReadAll(io.LimitReader(res.Body, 1<<20))
	return res.StatusCode, body, err
}

// list returns the ids of all sandboxes.
func (g *gateway) list(t *testing.T) []string {
	t.Helper()
	status, body := g.do(t, http.MethodGet, "/v2/sandboxes")
	var list []struct {
		ID string `json:"sandboxID"`
	}
	if err := json.Unmarshal(body, &list); err != nil || status != http.StatusOK {
		t.Errorf("list of sandboxes: status %d, %v: %s", status, err, body)
	}
	var ids []string
	for _, sb := range list {
		ids = append(ids, sb.ID)
	}
	return ids
}

// plainEnv is the environment without what would reach a sandbox or an SDK.
func plainEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "E2B_") || strings.HasPrefix(kv, "SANDBOX_") || strings.HasPrefix(kv, "NODE_") {
			continue
		}
		env = append(env, kv)
	}
	return env
}

// A lockedBuffer collects output of several writers.
type lockedBuffer struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// tail returns the end of what was written, at most n bytes.
func (b *lockedBuffer) tail(n int) string {
	s := b.String()
	return s[max(0, len(s)-n):]
}
