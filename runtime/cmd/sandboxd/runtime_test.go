package main

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// As the runtime of a sandbox it takes a template, in each of the ways that
// server.Main does.
func TestRuntime(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "template.json")
	if err := os.WriteFile(file, []byte(`{"format":1,"name":"x","workdir":"`+dir+`","env":{"FROM":"template"},"commands":{"look":{"run":"echo $FROM; pwd","shell":true}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	const token = "the-token-of-this-test"
	tokenFile := filepath.Join(dir, "token")
	if err := os.WriteFile(tokenFile, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		env  string
		pid1 bool
	}{
		"options":  {args: []string{"--template", file, "--token-file", tokenFile}, env: "X=y"},
		"command":  {args: []string{"runtime", "--template=" + file}, env: "SANDBOX_SERVER_TOKEN=" + token},
		"variable": {args: []string{"runtime", "--token-file", tokenFile}, env: "SANDBOX_TEMPLATE_FILE=" + file},
		"pid 1":    {args: []string{"--template", file}, env: "SANDBOX_SERVER_TOKEN=" + token, pid1: true},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe", append(c.args, "--listen", "127.0.0.1:0")...)
			cmd.Env = []string{envMain + "=1", "PATH=" + os.Getenv("PATH"), c.env}
			if c.pid1 {
				if os.Geteuid() != 0 {
					t.Skip("only root makes a pid name space without a user name space")
				}
				cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
			}
			errs, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill()
			address, log := "", ""
			lines := bufio.NewScanner(errs)
			for address == "" && lines.Scan() {
				log += lines.Text() + "\n"
				if _, a, ok := strings.Cut(lines.Text(), ": listening on "); ok {
					address = a
				}
			}
			if address == "" {
				t.Fatalf("it does not serve: %s", log)
			}
			tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", address)
			}}
			defer tr.CloseIdleConnections()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://sandbox/commands/look", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+token)
			if status, body := do(t, &http.Client{Transport: tr}, req); status != 200 || !strings.Contains(body, `template\n`+dir+`\n`) {
				t.Errorf("%d %s", status, body)
			}
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			for lines.Scan() {
				log += lines.Text() + "\n"
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v: %s", err, log)
			}
			if strings.Contains(log, token) {
				t.Errorf("the log holds the token: %s", log)
			}
		})
	}
}
