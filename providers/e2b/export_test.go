package e2b

// For tests of the contract, which are outside: they reach sandboxfn, which
// imports this package.
var (
	NewLocal = newLocal
	Logger   = logger
)
