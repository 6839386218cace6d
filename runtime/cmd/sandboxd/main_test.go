package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/providers/local"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// envMain makes this test program be the command.
const envMain = "SANDBOXD_TEST_MAIN"

const waitLimit = 20 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(envMain) != "" {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args   string
		status int
		text   string
	}{
		{"", 2, "usage: sandboxd serve"},
		{"nope", 2, "no command"},
		{"help", 0, "usage: sandboxd serve"},
		{"version", 0, "sandboxd "},
		{"--version", 0, "sandboxd "},
		{"serve -h", 0, "  --listen address"},
		{"runtime -h", 0, "--template FILE"},
		{"runtime --nope", 2, "sandboxd runtime: E8007 start runtime: no option --nope; see --help"},
		{"--nope", 2, "sandboxd: E8007 start runtime: no option --nope; see --help"},
		{"--template", 2, "a value is missing after --template"},
		{"--listen 127.0.0.1:0", 2, "there is no access token"},
		{"--template /nope --listen unix:/tmp/x", 2, "no such file"},
		{"serve --nope", 2, "no option --nope; see sandboxd serve -h"},
		{"serve --listen", 2, "a value is missing after --listen"},
		{"serve --verbose=maybe", 2, "--verbose"},
		{"serve extra", 2, "unexpected argument"},
		{"serve --debug-port 80", 2, "--debug-sandbox"},
		{"serve --debug-sandbox --debug-port x", 2, "not a port"},
		{"serve --max-lifetime 5", 2, "for --max-lifetime: a unit is missing: write 5s or 5m"},
		{"serve --max-lifetime 0", 2, "not a duration of 1s"},
		{"serve --max-lifetime 1ms", 2, "not a duration of 1s"},
		{"serve --max-sandboxes 0", 2, "not a number from 1 on"},
		{"serve --max-sandboxes -3", 2, "not a number from 1 on"},
		{"serve --network moon", 2, "loopback, none, host"},
		{"serve --state-dir relative", 2, "not an absolute path"},
		{"key", 2, "say create, list or revoke"},
		{"key --help", 0, "usage: sandboxd key create"},
		{"key create -h", 0, "usage: sandboxd key create"},
		{"key nope", 2, `"nope" is none of create, list and revoke`},
		{"key create", 2, "the name of the key is missing"},
		{"key list extra", 2, `unexpected argument "extra"`},
		{"key create a b", 2, `unexpected argument "b"`},
		{"serve --listen 0.0.0.0:0", 2, "--insecure"},
		{"serve --listen :0", 2, "--insecure"},
		{"serve --listen nonsense", 2, "HOST:PORT"},
		{"serve --listen unix:relative", 2, "absolute"},
		{"serve --listen unix:/" + strings.Repeat("x", 107), 2, "at most 107"},
		{"serve --tls-cert x", 2, "go together"},
		{"serve --tls-cert /nope --tls-key /nope", 2, "cannot be used"},
	} {
		wantRun(t, c.status, c.text, strings.Fields(c.args)...)
	}
}

// wantRun runs the command. An error has to be short and name its code.
func wantRun(t *testing.T, status int, text string, args ...string) {
	t.Helper()
	t.Setenv("SANDBOX_STATE_DIR", filepath.Join(t.TempDir(), "state"))
	if len(args) > 1 && args[0] == "serve" && !slices.Contains(args, "--listen") {
		args = slices.Insert(args, 1, "--tls-cert", "/nope") // what is wrongly accepted fails there, and serves nothing
	}
	var out, errs bytes.Buffer
	got := run(args, &out, &errs)
	if got != status || !strings.Contains(out.String()+errs.String(), text) {
		t.Errorf("%q: %d, want %d: %s%s", args, got, status, out.String(), errs.String())
	}
	if strings.Contains(out.String()+errs.String(), " -listen") {
		t.Errorf("%q: an option with one dash: %s", args, out.String())
	}
	if status == statusOK || len(args) < 2 {
		return
	}
	if lines := strings.Count(errs.String(), "\n"); lines > 2 || !strings.HasPrefix(strings.Replace(errs.String(), "sandboxd runtime", "sandboxd", 1), "sandboxd: E8007 ") || out.Len() > 0 {
		t.Errorf("%q: %s%s", args, out.String(), errs.String())
	}
}

// What nobody could mean is refused before anything starts.
func TestServeRefusesNonsense(t *testing.T) {
	for _, d := range []string{"", ".", "https://x.example", "x.example/", "x example", "*.x.example", "-x.example", "x..example",
		"x.example:", "x.example:0", "x.example:http", "127.0.0.1", "::1", strings.Repeat("a.", 101) + "a", "é.example", "x.example\n"} {
		wantRun(t, 2, "--domain", "serve", "--domain", d)
	}
	for _, n := range []string{"", " ", "a b", "a\tb", "-x", "é", strings.Repeat("x", 129)} {
		wantRun(t, 2, "--template", "serve", "--template", n)
	}
	for _, d := range []string{"localhost", "X.Example", "x-1.example.", "x.example:8443"} {
		f, err := parseServe([]string{"--template", "team/code-interpreter_v1.2:tag", "--domain", d, "--max-sandboxes=7"}, io.Discard)
		if err != nil || string(f.domain) != d || len(f.templates) != 1 || f.maxSandboxes != 7 {
			t.Errorf("%q: %+v, %v", d, f, err)
		}
	}
}

func TestKeyCommands(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	do := func(status int, args ...string) (string, string) {
		t.Helper()
		var out, errs bytes.Buffer
		if got := run(append([]string{"key"}, args...), &out, &errs); got != status {
			t.Fatalf("%q: %d, want %d: %s", args, got, status, errs.String())
		}
		return out.String(), errs.String()
	}
	// What only looks makes nothing.
	for _, args := range [][]string{{"list", "--state-dir", state}, {"revoke", "laptop", "--state-dir", state}} {
		if _, errs := do(2, args...); !strings.Contains(errs, state) || !strings.Contains(errs, "--state-dir") {
			t.Errorf("%q: %s", args, errs)
		}
		if _, err := os.Stat(state); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("%q: %v", args, err)
		}
	}
	// Options may stand anywhere.
	for i, args := range [][]string{{"create", "--state-dir", state, "laptop"}, {"create", "desk", "--state-dir", state}, {"--state-dir=" + state, "--", "create", "-x"}} {
		if made, _ := do(0, args...); !regexp.MustCompile(`^E2B_API_KEY=e2b_[0-9a-f]{40}\n$`).MatchString(made) {
			t.Errorf("%d: %q", i, made)
		}
	}
	list, errs := do(0, "list", "--state-dir", state)
	if !strings.Contains(list, "laptop") || !strings.Contains(list, "desk") || !strings.Contains(list, " -x ") || strings.Contains(list, "e2b_") {
		t.Errorf("%q", list)
	}
	if errs != "sandboxd: keys in "+filepath.Join(state, "gateway")+"\n" {
		t.Errorf("%q", errs)
	}
	do(2, "create", "--state-dir", state, "laptop")
	do(0, "revoke", "--state-dir", state, "laptop")
	do(4, "revoke", "--state-dir", state, "laptop")
}

// A directory of somebody else is refused with its owner's name.
func TestStateOfOthers(t *testing.T) {
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	if err := os.MkdirAll(filepath.Join(state, "gateway"), 0o700); err != nil {
		t.Fatal(err)
	}
	var want string
	if os.Geteuid() == 0 {
		if err := os.Chown(filepath.Join(state, "gateway"), 54321, 54321); err != nil {
			t.Fatal(err)
		}
		want = "belongs to user 54321, and this is root"
	} else {
		if err := os.Chmod(state, 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Chmod(state, 0o700) })
		want = state + " cannot be written"
	}
	for _, args := range [][]string{{"key", "list"}, {"key", "create", "x"}, {"serve", "--listen", "127.0.0.1:0"}} {
		var errs bytes.Buffer
		if status := run(append(args, "--state-dir", state), io.Discard, &errs); status != 2 || !strings.Contains(errs.String(), want) || !strings.Contains(errs.String(), "--state-dir") {
			t.Errorf("%q: %d %s", args, status, errs.String())
		}
	}
}

// daemon is the command as a process.
type daemon struct {
	t      *testing.T
	cmd    *exec.Cmd
	key    string
	addrs  []string
	ended  chan error
	stderr *bytes.Buffer // complete after ended
}

// needSandbox skips the test where no sandbox can be built; in CI it fails.
func needSandbox(t *testing.T) {
	t.Helper()
	p, err := local.New(providers.Config{StateDir: t.TempDir(), Settings: map[string]string{"pool": "0"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := p.Check(ctx); err != nil {
		if errors.Is(err, errdefs.ErrIsolation) && os.Getenv("CI") == "" {
			t.Skip(err)
		}
		t.Fatal(err)
	}
}

// startDaemon runs "sandboxd serve" and waits until n addresses are served.
func startDaemon(t *testing.T, state string, n int, args ...string) *daemon {
	t.Helper()
	d := &daemon{t: t, ended: make(chan error, 1), stderr: &bytes.Buffer{}}
	d.cmd = exec.Command("/proc/self/exe", append([]string{"serve", "--state-dir", state}, args...)...)
	d.cmd.Env = append(os.Environ(), envMain+"=1")
	stdout, err := os.CreateTemp(t.TempDir(), "stdout") // written by the process itself, so complete when it listens
	if err != nil {
		t.Fatal(err)
	}
	defer stdout.Close()
	d.cmd.Stdout = stdout
	errs, err := d.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	listening := make(chan string, 16)
	go func() {
		lines := bufio.NewScanner(errs)
		for lines.Scan() {
			d.stderr.WriteString(lines.Text() + "\n")
			if a, ok := strings.CutPrefix(lines.Text(), "sandboxd: listening on "); ok {
				listening <- a
			}
		}
		close(listening)
		d.ended <- d.cmd.Wait()
	}()
	t.Cleanup(func() { d.cmd.Process.Kill() })
	for range n {
		select {
		case a, ok := <-listening:
			if !ok {
				t.Fatalf("it ended: %s", d.stderr.String())
			}
			d.addrs = append(d.addrs, a)
		case <-time.After(waitLimit):
			t.Fatal("it does not listen")
		}
	}
	printed, err := os.ReadFile(stdout.Name())
	if err != nil {
		t.Fatal(err)
	}
	d.key, _ = strings.CutPrefix(strings.TrimSpace(string(printed)), "E2B_API_KEY=")
	return d
}

func (d *daemon) end(sig os.Signal) error {
	d.t.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil {
		d.t.Fatal(err)
	}
	select {
	case err := <-d.ended:
		return err
	case <-time.After(waitLimit):
		d.t.Fatal("it does not end")
		return nil
	}
}

func request(t *testing.T, c *http.Client, method, url, key, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", key)
	return do(t, c, req)
}

func do(t *testing.T, c *http.Client, req *http.Request) (int, string) {
	t.Helper()
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func TestServe(t *testing.T) {
	needSandbox(t)
	dir := t.TempDir()
	state, socket := filepath.Join(dir, "state"), filepath.Join(dir, "s")
	cert, key, pool := certificate(t, dir)
	// One listener of each kind, TLS on all of TCP.
	d := startDaemon(t, state, 2, "--listen", "127.0.0.1:0", "--listen", "unix:"+socket, "--tls-cert", cert, "--tls-key", key, "--domain", "test.example")
	if !regexp.MustCompile(`^e2b_[0-9a-f]{40}$`).MatchString(d.key) {
		t.Fatalf("key %q", d.key)
	}
	if d.addrs[1] != "unix:"+socket {
		t.Errorf("%q", d.addrs)
	}
	if fi, err := os.Stat(socket); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", fi, err)
	}
	unix := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	defer unix.CloseIdleConnections()
	status, body := request(t, unix, "POST", "http://localhost/v2/sandboxes", d.key, `{"templateID":"base"}`)
	if status != 201 || !strings.Contains(body, `"domain":"test.example"`) {
		t.Fatalf("%d %s", status, body)
	}
	id := regexp.MustCompile(`"sandboxID":"([a-z0-9]+)"`).FindStringSubmatch(body)[1]
	for _, h2 := range []bool{false, true} {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: h2}
		c := &http.Client{Transport: tr}
		if status, body := request(t, c, "GET", "https://"+d.addrs[0]+"/sandboxes/"+id, d.key, ""); status != 200 {
			t.Errorf("over TLS: %d %s", status, body)
		}
		req, _ := http.NewRequest("GET", "https://"+d.addrs[0]+"/health", nil)
		req.Host = "49983-" + id + ".test.example"
		res, err := c.Do(req)
		if err != nil || res.StatusCode != 204 || (res.ProtoMajor == 2) != h2 {
			t.Errorf("health over TLS: %v, %v", res, err)
		}
		tr.CloseIdleConnections()
	}
	// A second gateway on the same directory is refused.
	var errs bytes.Buffer
	if status := run([]string{"serve", "--state-dir", state, "--listen", "127.0.0.1:0"}, io.Discard, &errs); status == 0 || !strings.Contains(errs.String(), "another gateway") {
		t.Errorf("%d %s", status, errs.String())
	}
	if err := d.end(syscall.SIGTERM); err != nil {
		t.Errorf("%v: %s", err, d.stderr.String())
	}
	unix.CloseIdleConnections()

	// Sandbox and key are still there; no second key is printed.
	again := startDaemon(t, state, 1, "--listen", "unix:"+socket)
	if again.key != "" {
		t.Error("another key was made")
	}
	if status, body := request(t, unix, "GET", "http://localhost/sandboxes/"+id, d.key, ""); status != 200 {
		t.Errorf("after the restart: %d %s", status, body)
	}
	if status, body := request(t, unix, "DELETE", "http://localhost/sandboxes/"+id, d.key, ""); status != 204 {
		t.Errorf("%d %s", status, body)
	}
	if err := again.end(os.Interrupt); err != nil {
		t.Errorf("%v: %s", err, again.stderr.String())
	}
	if strings.Contains(d.stderr.String()+again.stderr.String(), d.key) {
		t.Error("the log holds the key")
	}
}

// The second signal does not wait for anybody.
func TestSecondSignal(t *testing.T) {
	needSandbox(t)
	d := startDaemon(t, filepath.Join(t.TempDir(), "state"), 1, "--listen", "127.0.0.1:0")
	c, err := net.Dial("tcp", d.addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// A request that is under way holds the first signal up.
	io.WriteString(c, "POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: "+d.key+"\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n")
	if _, err := bufio.NewReader(c).ReadString('\n'); err != nil { // 100 Continue: it reads the body
		t.Fatal(err)
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond) // two of one kind at the same moment are one
	begin := time.Now()
	err = d.end(os.Interrupt)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("%v", err)
	}
	if took := time.Since(begin); took > shutdownGrace {
		t.Errorf("it took %v", took)
	}
}

// certificate makes a key pair for 127.0.0.1.
func certificate(t *testing.T, dir string) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pool = x509.NewCertPool()
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool.AddCert(parsed)
	return write("cert", "CERTIFICATE", der), write("key", "PRIVATE KEY", private), pool
}
