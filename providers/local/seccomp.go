//go:build linux

package local

//go:generate go test -run ^TestFilter$ -update .

// seccompFilter is the system call filter of every sandbox: the default
// profile of the moby project without what a process that has no capabilities
// can do without, with rules about arguments on top. It is data: filter_test.go
// says what it is made from and writes zfilter_*.go.
func seccompFilter() []byte { return []byte(filterCode) }

// seccompInstructions is its length.
const seccompInstructions = len(filterCode) / 8
