package acceptance

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/acceptance/governed"
	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// buildGoverned builds the template of a function, for as long as the test runs.
func buildGoverned(t *testing.T, m *model.Template) {
	t.Helper()
	if _, err := sandboxfn.BuildTemplate(t.Context(), m, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sandboxfn.RemoveTemplate(context.Background(), m.Name); err != nil {
			t.Error(err)
		}
	})
}

// TestGovernedRefused: a function that the template keeps from being started is an
// error of the call, which names the rule.
func TestGovernedRefused(t *testing.T) {
	sbtest.NeedSandbox(t)
	off := func(names ...string) *model.Server { return &model.Server{Disable: names} }
	programs := func(c model.CommandPolicy) model.Policy { return model.Policy{Commands: c} }
	for _, c := range []struct {
		name   string
		server *model.Server
		policy model.Policy
		call   func(context.Context) (bool, error)
		code   sandboxfn.ErrorCode
		rule   string
	}{
		{"switched-off", off("functions.call"), model.Policy{}, governed.SwitchedOff, "E8022", "endpoint functions.call is not enabled"},
		{"no-programs", off("process.exec"), model.Policy{}, governed.NoPrograms, "E8022", "endpoint process.exec is not enabled"},
		{"listed", nil, programs(model.CommandPolicy{Allow: []model.CommandRule{{Program: "cat"}, {Program: "sha256sum"}, {Program: "chmod"}}}),
			governed.Listed, "E8021", `commands.allow is "cat, sha256sum, chmod"`},
		{"wrong-user", nil, programs(model.CommandPolicy{Users: []string{"nobody"}}), governed.WrongUser, "E8021", `commands.users is "nobody"`},
		{"wrong-folder", nil, programs(model.CommandPolicy{Cwd: []string{"/srv"}}), governed.WrongFolder, "E8021", `commands.cwd is "/srv"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			buildGoverned(t, &model.Template{Name: "governed-" + c.name, Server: c.server, Policy: c.policy})
			_, err := c.call(t.Context())
			if !errors.Is(err, sandboxfn.ErrWorkerStart) || !errors.Is(err, &sandboxfn.Error{Code: c.code}) || !strings.Contains(err.Error(), c.rule) {
				t.Errorf("got %v, want %s and %s", err, c.code, c.rule)
			}
		})
	}
}

// TestGovernedFunction: a function is code of its caller. The policy decides whether
// it starts, as whom, where and with which variables, and for how long; what it opens
// and starts itself is up to its user, though clients of the sandbox are refused the
// same.
func TestGovernedFunction(t *testing.T) {
	sbtest.NeedSandbox(t)
	ctx := t.Context()
	t.Setenv("LOOK_SECRET", "s")
	buildGoverned(t, &model.Template{
		Name:  "governed-look",
		Env:   map[string]string{"LOOK_DENIED_TOO": "a"},
		Build: []model.Step{{Run: "mkdir -p /opt/template/vault && echo found > /opt/template/vault/secret && chmod 755 /opt/template/vault && chmod 644 /opt/template/vault/secret"}},
		Policy: model.Policy{
			Files: model.FilePolicy{Deny: []string{"/opt/template/vault/**", "/tmp/look"}},
			Commands: model.CommandPolicy{
				Deny: []model.CommandRule{{Program: "uname"}}, EnvDeny: []string{"LOOK_DENIED*", "*_SECRET", "SANDBOX_*"},
			},
		},
	})
	seen, err := governed.Look(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if seen.Secret != "found" || !slices.Equal(seen.Entries, []string{"secret"}) || seen.Denied != "Linux" || !seen.Wrote {
		t.Errorf("the function itself: %+v", seen)
	}
	has := func(name string) bool {
		return slices.ContainsFunc(seen.Env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	}
	for name, want := range map[string]bool{"LOOK_KEPT": true, "LOOK_DENIED": false, "LOOK_DENIED_TOO": false, "LOOK_SECRET": false, "LD_LOOK": false} {
		if has(name) != want {
			t.Errorf("variable %s is there: %v", name, !want)
		}
	}

	sb, err := sandboxfn.Create(ctx, &sandboxfn.CreateOptions{Template: "governed-look"})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	if _, err := sb.FS(ctx).ReadFile("/opt/template/vault/secret"); sandboxfn.CodeOf(err) != "E8020" || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a client reads what is denied: %v", err)
	}
	if err := sb.FS(ctx).WriteFile("/tmp/look", nil, 0o600); sandboxfn.CodeOf(err) != "E8020" {
		t.Errorf("a client writes what is denied: %v", err)
	}
	if err := sb.Command(ctx, "uname", "-s").Run(); sandboxfn.CodeOf(err) != "E8021" {
		t.Errorf("a client starts what is denied: %v", err)
	}
}

// TestGovernedTime: a worker is held to max_runtime and counts for max_processes.
func TestGovernedTime(t *testing.T) {
	sbtest.NeedSandbox(t)
	buildGoverned(t, &model.Template{
		Name: "governed-endless", Commands: map[string]model.Command{"doze": {Run: "sleep 1000"}},
		Policy: model.Policy{Commands: model.CommandPolicy{MaxRuntime: 2 * time.Second, MaxProcesses: 1}},
	})
	start := time.Now()
	err := governed.Endless(t.Context())
	lost, ok := errors.AsType[*sandboxfn.WorkerLostError](err)
	if !ok || !lost.Started || !strings.Contains(err.Error(), "commands.max_runtime 2s") {
		t.Errorf("got %v", err)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("ended after %v", took)
	}

	sb, err := sandboxfn.Create(t.Context(), &sandboxfn.CreateOptions{Template: "governed-endless"})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	_, named := sb.Invoke(t.Context(), "doze", nil, nil)
	for what, err := range map[string]error{"command": sb.Command(t.Context(), "sleep", "1000").Run(), "named command": named} {
		if exit, ok := errors.AsType[*sandboxfn.ExitError](err); !ok || exit.Signal != "killed" || !errors.Is(err, sandboxfn.ErrCommandTimeout) || !strings.Contains(err.Error(), "commands.max_runtime 2s") {
			t.Errorf("%s: got %v", what, err)
		}
	}
}
