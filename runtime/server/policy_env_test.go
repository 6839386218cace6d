//go:build linux

package server

import (
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// envDoor is a way on which a client hands variables over. Names returns those that
// what it started has.
type envDoor struct {
	name  string
	names func(t *testing.T, r *rig, s starting) []string
}

func variableNames(text string) []string {
	var names []string
	for line := range strings.Lines(strings.ReplaceAll(text, "\r", "")) {
		name, _, _ := strings.Cut(line, "=")
		names = append(names, name)
	}
	return names
}

// envDoors are all of them: those that start a program, and those where a shell, a
// terminal or an interpreter prints its own.
func envDoors() []envDoor {
	var doors []envDoor
	for _, d := range commandDoors {
		doors = append(doors, envDoor{d.name, func(t *testing.T, r *rig, s starting) []string {
			out, err := d.start(t, r, s)
			if err != nil {
				t.Error(err)
			}
			return variableNames(out)
		}})
	}
	with := func(vars, body string, s starting) string {
		env, _ := json.Marshal(s.envs)
		return body + `,"` + vars + `":` + string(env) + "}"
	}
	// stdout joins what the lines of a stream say was printed.
	stdout := func(body, key string) string {
		var out strings.Builder
		for line := range strings.Lines(body) {
			var e map[string]any
			line = strings.TrimPrefix(line, "data: ")
			if json.Unmarshal([]byte(line), &e) == nil {
				text, _ := e[key].(string)
				out.WriteString(text)
			}
		}
		return out.String()
	}
	post := func(path, body, key string, headers ...string) func(t *testing.T, r *rig, s starting) []string {
		return func(t *testing.T, r *rig, s starting) []string {
			vars := "env"
			if path == "/execute" {
				vars = "env_vars"
			}
			a := r.call(t, "POST", path, with(vars, body, s), headers...)
			if a.status != http.StatusOK {
				t.Errorf("%d %s", a.status, a.body)
			}
			return variableNames(stdout(a.body, key))
		}
	}
	const port = "E2b-Sandbox-Port"
	return append(doors,
		envDoor{"HTTP shell", post("/shell", `{"command":"env"`, "stdout")},
		envDoor{"HTTP shell as a stream", post("/shell/stream", `{"command":"env"`, "data")},
		envDoor{"HTTP terminal", func(t *testing.T, r *rig, s starting) []string {
			term := r.openTerminal(t, with("env", `{"shell":"bash"`, s))
			file := t.TempDir() + "/env"
			screen := r.attach(t, term)
			screen.typed("env >" + file + "; echo done-$((1+1))\r")
			screen.until("done-2")
			b, err := os.ReadFile(file)
			check(t, err)
			return variableNames(string(b))
		}},
		envDoor{"code", post("/code/run", `{"language":"bash","code":"env"`, "stdout")},
		envDoor{"code as events", post("/code/run", `{"language":"bash","code":"env"`, "text", "Accept", "text/event-stream")},
		envDoor{"E2B's code", post("/execute", `{"language":"bash","code":"env"`, "text", port, "49999")},
		envDoor{"E2B's code in a context", func(t *testing.T, r *rig, s starting) []string {
			var c struct{ ID string }
			r.call(t, "POST", "/contexts", `{"language":"bash"}`, port, "49999").into(t, &c)
			return post("/execute", `{"context_id":`+quote(c.ID)+`,"code":"env"`, "text", port, "49999")(t, r, s)
		}},
	)
}

// TestDeniedVariables: whatever door variables come by, those that the policy denies
// do not arrive, nor do those with which a loader brings code in. That of a named
// command is its declaration.
func TestDeniedVariables(t *testing.T) {
	needBash(t)
	s := starting{cmd: "/usr/bin/env", envs: map[string]string{"DENIED_ONE": "x", "LD_ASKED": "x", "SANDBOX_ASKED": "x", "SANDBOX_WORKER_ASKED": "x", "ASKED": "x"}}
	for name, c := range map[string]struct {
		policy model.CommandPolicy
		not    []string
	}{
		"env_deny":  {model.CommandPolicy{EnvDeny: []string{"DENIED_*", "SANDBOX_*"}}, []string{"DENIED_ONE", "DENIED_BY_SANDBOX", "LD_ASKED", "SANDBOX_ASKED"}},
		"any rule":  {model.CommandPolicy{MaxProcesses: 50}, []string{"LD_ASKED", "SANDBOX_ASKED"}},
		"no policy": {model.CommandPolicy{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(o *Options) {
				o.Env = map[string]string{"DENIED_BY_SANDBOX": "x", "OF_SANDBOX": "x"}
				o.Template = &model.Template{
					Policy:   model.Policy{Commands: c.policy},
					Commands: map[string]model.Command{s.commandName(): {Run: s.cmd, Env: s.envs}},
				}
			})
			for _, d := range envDoors() {
				t.Run(d.name, func(t *testing.T) {
					got := d.names(t, r, s)
					for _, name := range []string{"OF_SANDBOX", "DENIED_BY_SANDBOX", "DENIED_ONE", "LD_ASKED", "SANDBOX_ASKED", "SANDBOX_WORKER_ASKED", "ASKED"} {
						if want := !slices.Contains(c.not, name); slices.Contains(got, name) != want {
							t.Errorf("%s is there: %v", name, !want)
						}
					}
				})
			}
		})
	}
}
