//go:build !linux

package local

import (
	"runtime"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Name is the name under which the provider is registered.
const Name = "local"

func init() {
	providers.Register(Name, func(providers.Config) (providers.Provider, error) {
		return nil, &errdefs.Error{Code: "E2010", Op: "open provider local",
			Message:    "a sandbox on this machine needs a Linux kernel, and this is " + runtime.GOOS,
			Suggestion: "run in WSL 2 or a Linux virtual machine, or choose another provider"}
	})
}

// InstallRuntime is E2010: there are no local sandboxes on this system.
func InstallRuntime(string) (string, error) {
	return "", errdefs.New("E2010", "install runtime", "a sandbox on this machine needs a Linux kernel, and this is "+runtime.GOOS)
}
