package sandboxtest_test

import (
	"context"
	"log"
	"net/rpc"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

const self = "github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest_test"

// bindings are what init binds: functions of the test are declared in package
// variables, which refer to them.
var bindings []func()

// declare is what generated code does for a function with one parameter.
func declare[A, R any](name string, fn func(context.Context, A) (R, error)) sandboxfn.Func[A, R] {
	return declareWith(name, sandboxfn.Options{}, fn)
}

func declareWith[A, R any](name string, o sandboxfn.Options, fn func(context.Context, A) (R, error)) sandboxfn.Func[A, R] {
	return declareDecl(sandboxfn.Decl{Name: name, Options: o, Params: []sandboxfn.Param{{Name: "v"}}}, fn)
}

func declareDecl[A, R any](d sandboxfn.Decl, fn func(context.Context, A) (R, error)) sandboxfn.Func[A, R] {
	d.Package, d.Schema = self, "0123456789abcdef"
	f := sandboxfn.Declare[A, R](d)
	bindings = append(bindings, func() { sandboxfn.Bind(f, fn) })
	return f
}

func TestMain(m *testing.M) {
	if kind, address, ok := strings.Cut(os.Getenv(envServer), " "); ok {
		if kind == "rpc" {
			rpc.Register(Echo{})
		}
		log.Fatal(serveBench(kind, address))
	}
	goleak.VerifyTestMain(m)
}
