//go:build linux

package server

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/account"
	"github.com/agent-sandbox/sandbox-go/runtime/command"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/httpapi"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// starting is what a door is asked to start.
type starting struct {
	cmd  string
	args []string
	cwd  string
	envs map[string]string
}

// commandDoor is one way to start a program. Start returns what was printed, or
// how the door refuses: an error whose text has the code and the rule.
type commandDoor struct {
	name  string
	start func(t *testing.T, r *rig, s starting) (string, error)
}

// commandDoors are all ways that start what the client says.
var commandDoors = []commandDoor{
	{"process", func(t *testing.T, r *rig, s starting) (string, error) {
		res, err := r.run(t.Context(), s.request())
		return outcome(res, err)
	}},
	{"terminal", func(t *testing.T, r *rig, s starting) (string, error) {
		req := s.request()
		req.Pty = &pb.PTY{}
		res, err := r.run(t.Context(), req)
		return outcome(res, err)
	}},
	{"function worker", func(t *testing.T, r *rig, s starting) (string, error) {
		conn, resp := openChannel(t, r, testChannel)
		defer conn.Close()
		if resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatal(resp.Status)
		}
		res, err := r.run(t.Context(), s.request(), process.ChannelHeader, testChannel)
		return outcome(res, err)
	}},
	{"the runtime itself", func(t *testing.T, r *rig, s starting) (string, error) {
		p, err := begunInside(t, r, s)
		if err != nil {
			return "", coded(err)
		}
		defer p.Close()
		res := &result{}
		for res.end == nil {
			e, err := p.Next(t.Context())
			if err != nil {
				return "", err
			}
			res.add(e)
		}
		return outcome(res, nil)
	}},
	{"HTTP exec", func(t *testing.T, r *rig, s starting) (string, error) {
		a := r.call(t, "POST", "/exec", s.body())
		if a.status != http.StatusOK {
			return "", a.refusal()
		}
		var got httpapi.RunResult
		a.into(t, &got)
		if got.ExitCode != 0 {
			return "", errors.New(got.Stdout + got.Stderr + got.Status)
		}
		return got.Stdout, nil
	}},
	{"HTTP exec as a stream", func(t *testing.T, r *rig, s starting) (string, error) {
		a := r.call(t, "POST", "/exec/stream", s.body())
		if a.status != http.StatusOK {
			return "", a.refusal()
		}
		var out strings.Builder
		for line := range strings.Lines(a.body) {
			var e struct{ Data, Status string }
			if data, ok := strings.CutPrefix(line, "data: "); ok && json.Unmarshal([]byte(data), &e) == nil {
				out.WriteString(e.Data)
				if e.Status != "" && e.Status != "exit status 0" {
					return "", errors.New(out.String() + e.Status)
				}
			}
		}
		return out.String(), nil
	}},
	{"HTTP start", func(t *testing.T, r *rig, s starting) (string, error) {
		a := r.call(t, "POST", "/process/start", s.body())
		if a.status >= 400 {
			return "", a.refusal()
		}
		var started httpapi.Started
		a.into(t, &started)
		res, err := r.connect(t.Context(), uint32(started.Pid))
		return outcome(res, err)
	}},
	{"named command", func(t *testing.T, r *rig, s starting) (string, error) {
		a := r.call(t, "POST", "/commands/"+s.commandName(), "{}")
		if a.status != http.StatusOK {
			return "", a.refusal()
		}
		var got command.Answer
		a.into(t, &got)
		if *got.ExitCode != 0 {
			return "", errors.New(*got.Stdout + *got.Stderr + got.Status)
		}
		return *got.Stdout, nil
	}},
}

// begunInside starts s as code of the runtime does.
func begunInside(t *testing.T, r *rig, s starting) (*process.Running, error) {
	t.Helper()
	u, err := account.NewBook("", false).Lookup("")
	if err != nil {
		t.Fatal(err)
	}
	req := s.request()
	req.Stdin = nil
	return r.Server.process.Begin(account.NewContext(t.Context(), u), req)
}

// body is the request of the HTTP API.
func (s starting) body() string {
	b, _ := json.Marshal(httpapi.StartRequest{Argv: append([]string{s.cmd}, s.args...), Cwd: s.cwd, Env: s.envs})
	return string(b)
}

// refusal is an answer of the HTTP API as an error.
func (a apiAnswer) refusal() error { return fmt.Errorf("%s %d %s", a.code, a.status, a.body) }

// commandName is what the named command is called that does s.
func (s starting) commandName() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", []any{s.cmd, s.args, s.cwd, s.envs}))
	return fmt.Sprintf("c%x", sum[:8])
}

// underPolicy is a rig whose template has the policy, and a named command for each
// of starts.
func underPolicy(t *testing.T, p model.Policy, starts ...starting) *rig {
	m := &model.Template{Policy: p, Commands: map[string]model.Command{}}
	for _, s := range starts {
		words := []string{"'" + s.cmd + "'"}
		for _, a := range s.args {
			words = append(words, "'"+a+"'")
		}
		m.Commands[s.commandName()] = model.Command{Run: strings.Join(words, " "), Cwd: s.cwd, Env: s.envs}
	}
	return newRig(t, func(o *Options) { o.Template = m })
}

func (s starting) request() *pb.StartRequest {
	return &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: s.cmd, Args: s.args, Cwd: optional(s.cwd), Envs: s.envs}, Stdin: new(bool)}
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// outcome is what a stream brought, as a door gives it.
func outcome(res *result, err error) (string, error) {
	if err != nil {
		return "", coded(err)
	}
	if text := res.end.GetError(); text != "" {
		return "", errors.New(res.stdout + res.stderr + res.pty + text)
	}
	return strings.ReplaceAll(res.stdout+res.pty, "\r", ""), nil
}

// coded puts the code of an error of a call before its text.
func coded(err error) error {
	if ce, ok := errors.AsType[*connect.Error](err); ok {
		return errors.New(ce.Meta().Get(fault.Header) + " " + ce.Code().String() + " " + ce.Message())
	}
	return err
}

// TestCommandRules asks every door the same.
func TestCommandRules(t *testing.T) {
	rule := func(program string, args ...string) model.CommandRule {
		return model.CommandRule{Program: program, Args: args}
	}
	no, dir := false, t.TempDir()
	link, evil, script, env, dashed := dir+"/alias", dir+"/evil", dir+"/script", dir+"/env-script", dir+"/with-option"
	check(t,
		os.Symlink("/usr/bin/id", link), os.Mkdir(evil, 0o755),
		os.Symlink("/bin/sh", evil+"/echo"),
		os.WriteFile(script, []byte("#!/bin/sh\necho ran\n"), 0o755),
		os.WriteFile(env, []byte("#! /usr/bin/env sh\necho ran\n"), 0o755),
		os.WriteFile(dir+"/nul", []byte("#!/bin/sh\x00 x\necho ran\n"), 0o755),
		os.WriteFile(dir+"/split", []byte("#!/usr/bin/env -Ssh -e\necho ran\n"), 0o755),
		os.WriteFile(dir+"/valued", []byte("#!/usr/bin/env -S -u X 'sh' -e\necho ran\n"), 0o755),
		os.WriteFile(dashed, []byte("#!/bin/sh -e\necho ran\n"), 0o755),
		os.Chmod(dir, 0o755))
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		policy model.CommandPolicy
		start  starting
		want   string // of the refusal; empty: it runs
	}{
		{"no rule", model.CommandPolicy{MaxProcesses: 100}, starting{cmd: "id"}, ""},
		{"denied", model.CommandPolicy{Deny: []model.CommandRule{rule("id")}}, starting{cmd: "id"}, `commands.deny "id"`},
		{"denied by path", model.CommandPolicy{Deny: []model.CommandRule{rule("id")}}, starting{cmd: "/usr/bin/id"}, `commands.deny "id"`},
		{"denied by another name", model.CommandPolicy{Deny: []model.CommandRule{rule("id")}}, starting{cmd: link}, `commands.deny "id"`},
		{"denied over dots", model.CommandPolicy{Deny: []model.CommandRule{rule("id")}}, starting{cmd: "/usr/../usr/bin/./id"}, `commands.deny "id"`},
		{"path denied", model.CommandPolicy{Deny: []model.CommandRule{rule("/usr/bin/id")}}, starting{cmd: "id"}, `commands.deny "/usr/bin/id"`},
		{"another is denied", model.CommandPolicy{Deny: []model.CommandRule{rule("id")}}, starting{cmd: "echo"}, ""},
		{"arguments denied", model.CommandPolicy{Deny: []model.CommandRule{rule("id", "-u")}}, starting{cmd: "id", args: []string{"-u", "-r"}}, `commands.deny "id -u"`},
		{"other arguments", model.CommandPolicy{Deny: []model.CommandRule{rule("id", "-u")}}, starting{cmd: "id", args: []string{"-g"}}, ""},
		{"arguments are not text", model.CommandPolicy{Deny: []model.CommandRule{rule("echo", "a", "b")}}, starting{cmd: "echo", args: []string{"a b"}}, ""},
		{"allowed", model.CommandPolicy{Allow: []model.CommandRule{rule("echo")}}, starting{cmd: "echo", args: []string{"x"}}, ""},
		{"not allowed", model.CommandPolicy{Allow: []model.CommandRule{rule("echo")}}, starting{cmd: "id"}, `commands.allow is "echo"`},
		{"nothing allowed", model.CommandPolicy{Allow: []model.CommandRule{}}, starting{cmd: "echo"}, `commands.allow is ""`},
		{"allowed with arguments", model.CommandPolicy{Allow: []model.CommandRule{rule("id", "-u")}}, starting{cmd: "id", args: []string{"-u"}}, ""},
		{"allowed with others", model.CommandPolicy{Allow: []model.CommandRule{rule("id", "-u")}}, starting{cmd: "id"}, `commands.allow is "id -u"`},
		{"allowed and denied", model.CommandPolicy{Allow: []model.CommandRule{rule("id")}, Deny: []model.CommandRule{rule("id", "-u")}}, starting{cmd: "id", args: []string{"-u"}}, `commands.deny "id -u"`},
		{"shell beside an allow list", model.CommandPolicy{Allow: []model.CommandRule{rule("echo")}}, starting{cmd: "/bin/sh", args: []string{"-c", "echo x"}}, `commands.allow is "echo"`},
		{"another file of an allowed name", model.CommandPolicy{Allow: []model.CommandRule{rule("echo")}}, starting{cmd: evil + "/echo", args: []string{"-c", "id"}}, `commands.allow is "echo"`},
		{"PATH of the request", model.CommandPolicy{Shell: &no}, starting{cmd: "echo", args: []string{"-c", "id"}, envs: map[string]string{"PATH": evil}}, "commands.shell false"},
		{"no shell", model.CommandPolicy{Shell: &no}, starting{cmd: "sh", args: []string{"-c", "echo"}}, "commands.shell false"},
		{"no shell by another name", model.CommandPolicy{Shell: &no}, starting{cmd: evil + "/echo", args: []string{"-c", "id"}}, "commands.shell false"},
		{"no shell, no script", model.CommandPolicy{Shell: &no}, starting{cmd: script}, "commands.shell false"},
		{"no shell, no script with an option", model.CommandPolicy{Shell: &no}, starting{cmd: dashed}, "commands.shell false"},
		{"no shell, no script by env", model.CommandPolicy{Shell: &no}, starting{cmd: env}, "commands.shell false"},
		{"no shell, no script with a NUL", model.CommandPolicy{Shell: &no}, starting{cmd: dir + "/nul"}, "commands.shell false"},
		{"no shell, no script by env -S", model.CommandPolicy{Shell: &no}, starting{cmd: dir + "/split"}, "commands.shell false"},
		{"no shell, no script by env and an option", model.CommandPolicy{Shell: &no}, starting{cmd: dir + "/valued"}, "commands.shell false"},
		{"no shell, program", model.CommandPolicy{Shell: &no}, starting{cmd: "echo"}, ""},
		{"script allowed", model.CommandPolicy{Allow: []model.CommandRule{rule(script)}}, starting{cmd: script}, ""},
		{"user", model.CommandPolicy{Users: []string{me.Username}}, starting{cmd: "echo"}, ""},
		{"no such user", model.CommandPolicy{Users: []string{"nobody-else"}}, starting{cmd: "echo"}, `commands.users is "nobody-else"`},
		{"folder", model.CommandPolicy{Cwd: []string{dir}}, starting{cmd: "echo", cwd: evil}, ""},
		{"another folder", model.CommandPolicy{Cwd: []string{evil}}, starting{cmd: "echo", cwd: dir}, `commands.cwd is "` + evil + `"`},
		{"folder that is not there", model.CommandPolicy{Cwd: []string{evil}}, starting{cmd: "echo", cwd: "/not/there"}, `commands.cwd is "` + evil + `"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.start.cwd == "" {
				c.start.cwd = dir
			}
			r := underPolicy(t, model.Policy{Commands: c.policy}, c.start)
			for _, d := range commandDoors {
				out, err := d.start(t, r, c.start)
				switch {
				case c.want == "" && err != nil:
					t.Errorf("%s: %v", d.name, err)
				case c.want != "" && err == nil:
					t.Errorf("%s: it ran: %q", d.name, out)
				case c.want != "" && !(strings.Contains(err.Error(), "E8021") && says(err, "policy: "+c.want)):
					t.Errorf("%s: got %v, want E8021 and %s", d.name, err, c.want)
				}
			}
		})
	}
}

// says reports whether err says text, which may be inside of JSON.
func says(err error, text string) bool {
	return strings.Contains(err.Error(), text) || strings.Contains(err.Error(), strings.Trim(strconv.Quote(text), `"`))
}

// TestCommandFolderFollowsFiles: what must not be read is no working folder.
func TestCommandFolderFollowsFiles(t *testing.T) {
	dir := realTempDir(t)
	no := false
	check(t, os.Mkdir(dir+"/in", 0o755), os.Mkdir(dir+"/out", 0o755), os.Symlink(dir+"/out", dir+"/in/link"), os.Symlink(dir+"/in", dir+"/in/back"))
	cases := map[string]string{
		dir + "/in": "", dir + "/out": "files.read is", dir + "/in/link": "files.follow_links false", dir + "/in/back": "files.follow_links false", dir + "/no": "files.read is",
	}
	var starts []starting
	for cwd := range cases {
		starts = append(starts, starting{cmd: "echo", cwd: cwd})
	}
	r := underPolicy(t, model.Policy{Files: model.FilePolicy{Read: []string{dir + "/in"}, FollowLinks: &no}}, starts...)
	for _, d := range commandDoors {
		for cwd, want := range cases {
			_, err := d.start(t, r, starting{cmd: "echo", cwd: cwd})
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), "E8020") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s in %s: got %v, want %q", d.name, cwd, err, want)
			}
		}
	}
}

// TestStrippedVariables looks at the environment of a command by every door.
func TestStrippedVariables(t *testing.T) {
	s := starting{cmd: "/usr/bin/env", envs: map[string]string{"LD_PRELOAD": "x", "LD_LIBRARY_PATH": "x", "GLIBC_TUNABLES": "x", "SANDBOX_ID": "x", "GIT_DIR": "x", "SANDBOX_WORKER": "unit", "ASKED": "1"}}
	r := newRig(t, func(o *Options) {
		o.Env = map[string]string{"LD_FROM_SANDBOX": "1", "GIT_SSH": "1", "PLAIN": "1"}
		o.Template = &model.Template{
			Policy:   model.Policy{Commands: model.CommandPolicy{EnvDeny: []string{"GIT_*"}}},
			Commands: map[string]model.Command{s.commandName(): {Run: s.cmd, Env: s.envs}},
		}
	})
	for _, d := range commandDoors {
		out, err := d.start(t, r, s)
		if err != nil {
			t.Errorf("%s: %v", d.name, err)
			continue
		}
		var names []string
		for line := range strings.Lines(out) {
			name, _, _ := strings.Cut(line, "=")
			names = append(names, name)
		}
		for _, name := range []string{"LD_PRELOAD", "LD_LIBRARY_PATH", "GLIBC_TUNABLES", "SANDBOX_ID", "GIT_DIR", "GIT_SSH"} {
			if slices.Contains(names, name) {
				t.Errorf("%s: %s is there", d.name, name)
			}
		}
		for _, name := range []string{"LD_FROM_SANDBOX", "PLAIN", "ASKED", "SANDBOX_WORKER"} {
			if !slices.Contains(names, name) {
				t.Errorf("%s: %s is missing: %v", d.name, name, names)
			}
		}
	}
}

// TestPolicyOfLaterVariables: what a request cannot set for a command, it cannot set
// for all of them either.
func TestPolicyOfLaterVariables(t *testing.T) {
	r := underPolicy(t, model.Policy{Commands: model.CommandPolicy{Allow: []model.CommandRule{{Program: "env"}}, EnvDeny: []string{"GIT_*"}}})
	for name, status := range map[string]int{"LD_PRELOAD": 403, "BASH_ENV": 403, "GIT_DIR": 403, "PLAIN": 200} {
		if a := r.call(t, "POST", "/env", `{"vars":{`+quote(name)+`:"x"}}`); a.status != status {
			t.Errorf("%s: status %d, want %d", name, a.status, status)
		}
		res, err := r.run(t.Context(), (starting{cmd: "env"}).request())
		if err != nil || strings.Contains(res.stdout, name+"=x") != (status == 200) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if a := newRig(t, nil).call(t, "POST", "/env", `{"vars":{"LD_PRELOAD":""}}`); a.status != 200 {
		t.Errorf("without a policy: status %d", a.status)
	}
}

// TestInjectedVariables: an allowed script runs what it says, and not what a
// request says by way of its interpreter. A named command may.
func TestInjectedVariables(t *testing.T) {
	dir := t.TempDir()
	check(t, os.WriteFile(dir+"/script", []byte("#!/bin/bash\nls >/dev/null\necho \"script $OWN\"\n"), 0o755), os.Chmod(dir, 0o755),
		os.WriteFile(dir+"/evil", []byte("echo evil\n"), 0o644), os.WriteFile(dir+"/ls", []byte("#!/bin/sh\necho evil >&2\n"), 0o755))
	s := starting{cmd: dir + "/script", cwd: dir, envs: map[string]string{"BASH_ENV": dir + "/evil", "PATH": dir, "OWN": "1"}}
	r := underPolicy(t, model.Policy{Commands: model.CommandPolicy{Allow: []model.CommandRule{{Program: s.cmd}}}}, s)
	for _, d := range commandDoors {
		out, err := d.start(t, r, s)
		evil := strings.Contains(out, "evil")
		if err != nil || !strings.Contains(out, "script 1") || evil != strings.Contains(d.name, "named") {
			t.Errorf("%s: %q, %v", d.name, out, err)
		}
	}
}

// TestMaxProcesses: the one more is refused by every door, whichever door the
// others came by, and a place is free once one has ended.
func TestMaxProcesses(t *testing.T) {
	r := underPolicy(t, model.Policy{Commands: model.CommandPolicy{MaxProcesses: 2}}, starting{cmd: "echo"}, starting{cmd: "/not/there"})
	var pids []uint32
	var ends []<-chan *result
	for range 2 {
		pid, end := r.begin(t, sh("exec sleep 1000"))
		pids, ends = append(pids, pid), append(ends, end)
	}
	for _, d := range commandDoors {
		if _, err := d.start(t, r, starting{cmd: "echo"}); err == nil || !says(err, "E8021 resource_exhausted") && !says(err, "E8021 429") || !strings.Contains(err.Error(), "policy: commands.max_processes 2") {
			t.Errorf("%s: %v", d.name, err)
		}
	}
	if err := r.signal(t.Context(), pids[0], pb.Signal_SIGNAL_SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-ends[0]
	for _, d := range commandDoors {
		// One after the other, each in the place that the one before has left.
		if _, err := d.start(t, r, starting{cmd: "echo"}); err != nil {
			t.Errorf("%s: %v", d.name, err)
		}
		if _, err := d.start(t, r, starting{cmd: "/not/there"}); err == nil {
			t.Errorf("%s: no error", d.name)
		}
	}
	check(t, r.signal(t.Context(), pids[1], pb.Signal_SIGNAL_SIGKILL))
	<-ends[1]
}

// TestCommandRulesInARace has somebody exchange a program for one that is denied,
// all the time: it never runs.
func TestCommandRulesInARace(t *testing.T) {
	dir := realTempDir(t)
	check(t, os.Symlink("/bin/echo", dir+"/program"), os.Symlink("/usr/bin/id", dir+"/other"))
	r := underPolicy(t, model.Policy{Commands: model.CommandPolicy{Deny: []model.CommandRule{{Program: "id"}}}})
	var over atomic.Bool
	var swapper sync.WaitGroup
	swapper.Go(func() {
		for !over.Load() {
			_ = unix.Renameat2(unix.AT_FDCWD, dir+"/program", unix.AT_FDCWD, dir+"/other", unix.RENAME_EXCHANGE)
		}
	})
	defer swapper.Wait()
	defer over.Store(true)
	ran, refused := 0, 0
	for range 300 {
		out, err := commandDoors[0].start(t, r, starting{cmd: dir + "/program", args: []string{"-u"}})
		switch {
		case err == nil && out == "-u\n":
			ran++
		case err != nil && strings.Contains(err.Error(), "E8021"):
			refused++
		default:
			t.Fatalf("got %q, %v", out, err)
		}
	}
	if ran == 0 || refused == 0 {
		t.Errorf("%d ran, %d were refused: nothing was tested", ran, refused)
	}
}

// TestShellDoors: what runs cells, shell lines and terminals over HTTP is a program
// as any other.
func TestShellDoors(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip(err)
	}
	no, dir := false, realTempDir(t)
	shells := []model.CommandRule{{Program: "bash"}, {Program: "sh"}}
	for _, c := range []struct {
		name   string
		policy model.Policy
		want   string
	}{
		{"no rule", model.Policy{}, ""},
		{"allowed", model.Policy{Commands: model.CommandPolicy{Allow: shells}}, ""},
		{"not allowed", model.Policy{Commands: model.CommandPolicy{Allow: []model.CommandRule{{Program: "echo"}}}}, `E8021 403 policy: commands.allow is "echo"`},
		{"denied", model.Policy{Commands: model.CommandPolicy{Deny: shells}}, `E8021 403 policy: commands.deny "`},
		{"no shell", model.Policy{Commands: model.CommandPolicy{Shell: &no}}, "E8021 403 policy: commands.shell false"},
		{"user", model.Policy{Commands: model.CommandPolicy{Users: []string{"nobody-else"}}}, "E8021 403 policy: commands.users is"},
		{"folder", model.Policy{Files: model.FilePolicy{Read: []string{dir}}}, "E8020 403 policy: files.read is"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := underPolicy(t, c.policy)
			for _, door := range []struct{ path, body, says string }{
				{"/code/run", `{"language":"bash","code":"echo ran"}`, "ran"},
				{"/shell", `{"command":"echo ran"}`, "ran"},
				{"/shell/stream", `{"command":"echo ran"}`, "ran"},
				{"/pty/sessions", `{"shell":"bash"}`, "session_id"},
			} {
				a := r.call(t, "POST", door.path, door.body)
				var said struct{ Message string }
				_ = json.Unmarshal([]byte(a.body), &said) // empty where it is something else
				got := fmt.Sprintf("%s %d %s", a.code, a.status, said.Message)
				if c.want == "" && (a.status >= 300 || !strings.Contains(a.body, door.says)) || c.want != "" && !strings.HasPrefix(got, c.want) {
					t.Errorf("%s: got %s, want %s: %s", door.path, got, c.want, a.body)
				}
			}
		})
	}
}

// TestMaxRuntime: a command that would run for ever ends, and says why.
func TestMaxRuntime(t *testing.T) {
	forever := starting{cmd: "sleep", args: []string{"100000"}}
	r := underPolicy(t, model.Policy{Commands: model.CommandPolicy{MaxRuntime: 50 * time.Millisecond}}, forever)
	for _, d := range commandDoors {
		_, err := d.start(t, r, forever)
		if err == nil || !strings.Contains(err.Error(), "policy: commands.max_runtime 50ms") {
			t.Errorf("%s: %v", d.name, err)
		}
	}
	// The deadline of a request that is before it stays one.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := r.run(ctx, sh("exec sleep 100000")); connect.CodeOf(err) != connect.CodeDeadlineExceeded {
		t.Errorf("got %v", err)
	}
}

// TestMaxOutput: of what nobody reads, as much is kept as the policy says.
func TestMaxOutput(t *testing.T) {
	const kept = 5000
	r := newRig(t, func(o *Options) {
		o.Template = &model.Template{Policy: model.Policy{Commands: model.CommandPolicy{MaxOutput: kept}}}
	})
	pid, end := r.begin(t, sh("head -c 100000 /dev/zero"))
	if res := <-end; len(res.stdout) != 100000 {
		t.Errorf("a client that reads got %d bytes", len(res.stdout))
	}
	res, err := r.connect(t.Context(), pid)
	if err != nil {
		t.Fatal(err)
	}
	if got := res.header.Get(process.DroppedHeader); len(res.stdout) != kept || got != "stdout=95000, stderr=0" {
		t.Errorf("kept %d bytes, %s", len(res.stdout), got)
	}
}

// realTempDir is a folder by the name that the kernel has for it.
func realTempDir(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
