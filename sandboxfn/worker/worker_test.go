package worker_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

const self = "github.com/agent-sandbox/sandbox-go/sandboxfn/worker_test"

var late bool // set by an init that runs after the takeover

var ask = sandboxfn.Declare[string, string](sandboxfn.Decl{Package: self, Name: "ask", Params: []sandboxfn.Param{{Name: "what", Type: "string"}}})

func init() {
	sandboxfn.Bind(ask, func(ctx context.Context, what string) (string, error) {
		switch what {
		case "late":
			if late {
				return "initialised", nil
			}
		case "environment":
			return strings.Join(os.Environ(), "\n"), nil
		case "child":
			cmd := exec.Command("/proc/self/exe", "-test.run=^$")
			out, err := cmd.CombinedOutput()
			return string(out), err
		case "descriptors":
			out, err := exec.Command("ls", "-l", "/proc/self/fd").CombinedOutput()
			return string(out), err
		case "nested":
			return ask.Call(ctx, "late")
		}
		return "", nil
	})
	sandboxfn.Takeover(self)
}

func init() { late = true }

func TestMain(m *testing.M) {
	sandboxfn.Main()
	goleak.VerifyTestMain(m)
}

func TestMainInitialisesEverything(t *testing.T) {
	if got, err := ask.Call(sandboxtest.Process(t), "late"); got != "initialised" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

// Nothing of how a worker is started is left for the function or its children.
func TestHygiene(t *testing.T) {
	ctx := sandboxtest.Process(t)
	t.Setenv("SANDBOXTEST_SECRET", "of the caller")
	env, err := ask.Call(ctx, "environment")
	if err != nil || strings.Contains(env, "SANDBOX") {
		t.Errorf("environment: %q, %v", env, err)
	}
	if out, err := ask.Call(ctx, "child"); err != nil {
		t.Errorf("a child of this executable: %q, %v", out, err)
	}
	fds, err := ask.Call(ctx, "descriptors")
	if err != nil || strings.Contains(fds, "socket:") || strings.Contains(fds, "sandboxfn-counters") {
		t.Errorf("descriptors of a child:\n%s%v", fds, err)
	}
}

// A call from inside a worker runs in another one.
func TestNestedCall(t *testing.T) {
	ctx := sandboxtest.Process(t)
	want, err := ask.Call(ctx, "late")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ask.Call(ctx, "nested"); got != want || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// A stray variable must not make a program hang, or do what it does.
func TestStrayVariable(t *testing.T) {
	const token = "0123456789abcdef0123456789abcdef"
	unit := worker.EnvUnit + "=*"
	for name, env := range map[string][]string{
		"alone":               {unit},
		"short token":         {unit, worker.EnvToken + "=x", worker.EnvConn + "=3"},
		"no descriptor":       {unit, worker.EnvToken + "=" + token},
		"not a number":        {unit, worker.EnvToken + "=" + token, worker.EnvConn + "=x"},
		"closed descriptor":   {unit, worker.EnvToken + "=" + token, worker.EnvConn + "=3"},
		"descriptor, no conn": {unit, worker.EnvToken + "=" + token, worker.EnvConn + "=0"},
		"package":             {worker.EnvUnit + "=" + self},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^$")
			cmd.Env = append(os.Environ(), env...)
			var stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = io.Discard, &stderr
			err := cmd.Run()
			if cmd.ProcessState.ExitCode() != 2 || !strings.HasPrefix(stderr.String(), "sandboxfn: SANDBOX_WORKER=") {
				t.Errorf("%v, standard error %q", err, &stderr)
			}
		})
	}
}
