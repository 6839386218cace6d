package hostonly

import (
	"flag"
	"os"

	"golang.org/x/term"
)

var size = flag.Int("size", 1, "")

//sandbox:func
func work() int {
	flag.Parse()                        // want `flags are not parsed in a worker; work runs in a sandbox: pass it as a parameter`
	if term.IsTerminal(0) || deeper() { // want `a worker has no terminal`
		return *size // want `flags are not parsed in a worker, so \*size is always its default`
	}
	set := flag.NewFlagSet("x", flag.ContinueOnError)
	set.Parse(nil)
	return len(os.Args) // want `os.Args in a worker are not the caller's`
}

func deeper() bool {
	_, err := os.Getwd() // want `the working directory in a worker is not the caller's; work runs in a sandbox`
	return err == nil
}

func main() {
	flag.Parse()
	os.Getwd()
	println(*size, os.Args)
}
