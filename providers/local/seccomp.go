//go:build linux

package local

import "github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"

//go:generate go test -run ^TestFilter$ -update .

// seccompFilter is the system call filter of every sandbox: the default
// profile of the moby project without what a process that has no capabilities
// can do without, with rules about arguments on top. It is data: filter_test.go
// says what it is made from and writes zfilter_*.go.
//
// With debug it also has what a debugger does to processes of the same sandbox.
func seccompFilter(debug bool) []byte {
	if debug {
		return []byte(filterDebug)
	}
	return []byte(filterCode)
}

// seccompInstructions is the length of a filter.
func seccompInstructions(debug bool) int {
	if debug {
		return len(filterDebug) / 8
	}
	return len(filterCode) / 8
}

// sysctlPtrace is that of the Yama module. With 0 a process may trace any other
// of its user, with 1 its descendants, with 2 and 3 none that has no
// capabilities.
const sysctlPtrace = "kernel.yama.ptrace_scope"

// checkDebug refuses debugging where no process inside could trace another.
func checkDebug(sysctl func(string) string) error {
	if v := sysctl(sysctlPtrace); v == "2" || v == "3" {
		return &errdefs.Error{Code: "E8004", Op: "create sandbox",
			Message:    sysctlPtrace + " is " + v + ": this machine lets no process of a sandbox trace another",
			Suggestion: "set it to 1 with sysctl -w " + sysctlPtrace + "=1 (3 stays until the machine is started again), or create the sandbox without AllowDebug"}
	}
	return nil
}
