package sandboxtest_test

import "github.com/agent-sandbox/sandbox-go/sandboxfn"

// The name of this file sorts last, as that of generated files does, so that
// everything is initialised when the worker begins to serve.
func init() {
	for _, bind := range bindings {
		bind()
	}
	sandboxfn.Errors(self,
		sandboxfn.Sentinel(self+".errEmpty", &errEmpty),
		sandboxfn.ErrorType[*ParseErr](),
		sandboxfn.ErrorType[Code](),
		sandboxfn.ErrorType[*Hidden](),
	)
	sandboxfn.Takeover(self)
}
