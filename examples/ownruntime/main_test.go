//go:build linux

package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const mainVariable = "OWNRUNTIME_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainVariable) != "" {
		main()
	}
	os.Exit(m.Run())
}

func TestOwnRuntime(t *testing.T) {
	dir, err := os.MkdirTemp("", "own") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	cmd := exec.Command("/proc/self/exe", "--listen", "unix:"+socket, "--workdir", dir)
	cmd.Env = []string{mainVariable + "=1", "PATH=" + os.Getenv("PATH"), "SANDBOX_SERVER_TOKEN=token-of-the-example"}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	lines := bufio.NewReader(stderr)
	if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, "listening on unix:"+socket) {
		t.Fatalf("%q, %v", line, err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	ask := func(method, path, body string) string {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://sandbox"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer token-of-the-example")
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	if got := ask("GET", "/commands", ""); !strings.Contains(got, `"name":"disk"`) || !strings.Contains(got, `"name":"words"`) {
		t.Error(got)
	}
	got := ask("POST", "/commands/words", `{"text":"to be or not to be","top":2}`)
	if want := `{"result":[{"word":"be","count":2},{"word":"to","count":2}]}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := ask("POST", "/commands/disk", ""); !strings.Contains(got, ` KiB"}`) {
		t.Error(got)
	}
	if got := ask("POST", "/commands/disk", `{"folder":"/no/such"}`); !strings.Contains(got, "No such file") {
		t.Error(got)
	}
	// Beside its own commands it has the API of every runtime.
	if got := ask("POST", "/exec", `{"argv":["pwd"]}`); !strings.Contains(got, dir) || strings.Contains(got, "token-of-the-example") {
		t.Error(got)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, lines); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
