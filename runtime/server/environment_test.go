//go:build linux

package server

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/command"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// parseEnv reads what env(1) prints; a terminal ends lines with CR LF.
func parseEnv(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimRight(line, "\r\n"), "="); ok {
			out[k] = v
		}
	}
	return out
}

// Every way of starting code and every level: what is nearer to the command wins.
// The names say up to which level they are set.
func TestEnvironmentLevelsThroughEveryDoor(t *testing.T) {
	const value = "value-of-the-secret"
	own := map[string]string{"COMMAND": "command", "MY_PASSWORD": value}
	commands := command.NewRegistry()
	if err := command.Register(commands, "function", func(ctx context.Context, _ struct{}) (string, error) {
		out, err := (&command.Exec{Path: "env", Env: own}).Run(ctx)
		if err != nil {
			return "", err
		}
		return string(out.Stdout), nil
	}, nil); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(o *Options) {
		o.Commands = commands
		o.Template = &model.Template{
			Env: map[string]string{"LOGNAME": "template", "TEMPLATE": "template", "SANDBOX": "template", "SET": "template", "COMMAND": "template"},
			Commands: map[string]model.Command{
				"words": {Run: "env", Env: own}, "shell": {Run: "env", Shell: true, Env: own},
			},
			Start: "env > started.part; mv started.part started",
		}
		o.Env = map[string]string{"SANDBOX": "sandbox", "SET": "sandbox", "COMMAND": "sandbox", "GIVEN": value}
		o.SecretEnv = []string{"GIVEN"}
	})
	if _, err := r.env.Set(map[string]string{"SET": "set", "COMMAND": "set"}); err != nil {
		t.Fatal(err)
	}
	start := func(change func(*pb.StartRequest), headers ...string) func() string {
		return func() string {
			req := &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "env", Envs: maps.Clone(own)}}
			if change != nil {
				change(req)
			}
			res, err := r.run(t.Context(), req, headers...)
			if err != nil {
				t.Fatal(err)
			}
			return res.stdout + res.pty
		}
	}
	stdout := func(path, body string) func() string {
		return func() string {
			res, text := r.post(t, path, body)
			var a struct{ Stdout, Result string }
			if err := json.Unmarshal([]byte(text), &a); err != nil || res.StatusCode != 200 {
				t.Fatalf("%s %s", res.Status, text)
			}
			return a.Stdout + a.Result
		}
	}
	body := `"env":{"COMMAND":"command","MY_PASSWORD":"` + value + `"}}`
	doors := map[string]func() string{
		"E2B":            start(nil),
		"terminal":       start(func(q *pb.StartRequest) { q.Pty = &pb.PTY{Size: &pb.PTY_Size{Cols: 200, Rows: 50}} }),
		"worker":         start(func(q *pb.StartRequest) { q.Process.Envs["SANDBOX_WORKER_MARK"] = "1" }),
		"HTTP exec":      stdout("/exec", `{"argv":["env"],`+body),
		"HTTP shell":     stdout("/shell", `{"command":"env",`+body),
		"named, words":   stdout("/commands/words", ""),
		"named, shell":   stdout("/commands/shell", ""),
		"named function": stdout("/commands/function", ""),
	}
	for name, run := range doors {
		env := parseEnv(run())
		for key, want := range map[string]string{
			"LOGNAME": "template", "TEMPLATE": "template", "SANDBOX": "sandbox", "SET": "set", "COMMAND": "command", "GIVEN": value, "MY_PASSWORD": value,
		} {
			if env[key] != want {
				t.Errorf("%s: %s=%s, want %s", name, key, env[key], want)
			}
		}
		for key, v := range env {
			if strings.Contains(v, testToken) {
				t.Errorf("%s: %s holds the token of the runtime", name, key)
			}
		}
	}

	r.startTemplate()
	file := filepath.Join(r.opts.DefaultWorkDir, "started")
	eventually(t, "the command of the template ends", func() bool { _, err := os.Stat(file); return err == nil })
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if env := parseEnv(string(text)); env["COMMAND"] != "set" || env["SANDBOX"] != "sandbox" || env["TEMPLATE"] != "template" {
		t.Errorf("start: %v", env)
	}

	// Secrets are in no list and no error.
	pid, ended := r.begin(t, &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "cat", Envs: own}})
	for _, path := range []string{"/envs", "/process/list", "/capabilities", "/commands", "/metrics"} {
		res, err := r.http.Get("http://sandbox" + path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK {
			t.Errorf("%s: %s %v", path, res.Status, err)
		}
		if strings.Contains(string(b), value) || strings.Contains(string(b), testToken) {
			t.Errorf("%s shows a secret: %s", path, b)
		}
		if path == "/envs" && (!strings.Contains(string(b), `"SET":"set"`) || strings.Contains(string(b), "GIVEN")) {
			t.Errorf("%s", b)
		}
	}
	for _, p := range r.list(t) {
		if p.GetPid() != pid {
			continue // the command of the template may not be gone yet
		}
		if p.GetConfig().GetEnvs()["MY_PASSWORD"] != "" || p.GetConfig().GetEnvs()["COMMAND"] != "command" {
			t.Errorf("listed: %v", p)
		}
	}
	for name, args := range map[string]*pb.ProcessConfig{
		"program": {Cmd: "/no/such", Envs: own}, "folder": {Cmd: "env", Envs: own, Cwd: new("/no/such")}, "NUL": {Cmd: "env", Envs: map[string]string{"MY_PASSWORD": value + "\x00"}},
	} {
		res, err := r.run(t.Context(), &pb.StartRequest{Process: args})
		if err != nil && strings.Contains(err.Error(), value) || res != nil && strings.Contains(res.stderr+res.end.String(), value) {
			t.Errorf("%s: %v %v", name, res, err)
		}
	}
	if err := r.signal(t.Context(), pid, pb.Signal_SIGNAL_SIGKILL); err != nil {
		t.Error(err)
	}
	<-ended
}
