// Sandboxgen generates the code that runs annotated Go functions in a
// sandbox. It is meant to be run by go generate:
//
//	//go:generate go tool sandboxgen
//
// A function with the line //sandbox:func in its doc comment gets a wrapper of
// the same shape; the file zz_generated.sandbox.go beside the source holds it.
// docs/directives.md describes the directives and every diagnostic.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/agent-sandbox/sandbox-go/gen"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

const usage = `usage: sandboxgen [flags] [packages]
       sandboxgen -worker [-target linux/GOARCH] [-o file] [package]

Generates zz_generated.sandbox.go for the packages, by default the one in the
working directory. With -worker, builds the program of a main package as worker
for sandboxes of another platform; SANDBOX_WORKER_BINARY makes the program use it.

  -C dir       run in dir
  -check       write nothing; print what would change and exit 1 if anything would
  -f           look at every package, also if the cache says nothing changed
  -json        print diagnostics as JSON
  -list        print the functions found as JSON; write nothing
  -mod mode    as in the go command
  -o file      with -worker: what to write, by default PROGRAM-linux-GOARCH
  -tags list   as in the go command
  -target      with -worker: the platform, by default linux/GOARCH of this machine
  -v           say what was loaded, what was skipped and why
`

// Exit codes.
const (
	exitOK    = 0
	exitFault = 1 // faults in the source, or stale output with -check
	exitUsage = 2
)

// flags of the command line.
type flags struct {
	dir, mod, tags      string
	check, force        bool
	json, list, verbose bool
	worker              bool
	target, output      string // with worker
	patterns            []string
}

// parse reads the command line. The error flag.ErrHelp means that usage was
// asked for.
func parse(args []string) (*flags, error) {
	f := new(flags)
	set := flag.NewFlagSet("sandboxgen", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.StringVar(&f.dir, "C", "", "")
	set.BoolVar(&f.check, "check", false, "")
	set.BoolVar(&f.force, "f", false, "")
	set.BoolVar(&f.json, "json", false, "")
	set.BoolVar(&f.list, "list", false, "")
	set.StringVar(&f.mod, "mod", "", "")
	set.StringVar(&f.output, "o", "", "")
	set.StringVar(&f.tags, "tags", "", "")
	set.StringVar(&f.target, "target", "", "")
	set.BoolVar(&f.verbose, "v", false, "")
	set.BoolVar(&f.worker, "worker", false, "")
	if err := set.Parse(args); err != nil {
		return nil, err
	}
	f.patterns = set.Args()
	if f.check && f.list {
		return nil, errors.New("-check and -list exclude each other")
	}
	if f.worker && (f.check || f.list || f.force) {
		return nil, errors.New("-worker excludes -check, -list and -f")
	}
	if !f.worker && f.target+f.output != "" {
		return nil, errors.New("-target and -o need -worker")
	}
	return f, nil
}

func run(args []string, stdout, stderr io.Writer) int {
	f, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		return exitOK
	case err != nil:
		fmt.Fprintf(stderr, "sandboxgen: %v\n%s", err, usage)
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	opts := &gen.Options{Dir: f.dir, Patterns: f.patterns, Tags: f.tags, Mod: f.mod, Cache: gen.CacheDir(), Force: f.force}
	if f.verbose {
		opts.Logf = func(format string, args ...any) { fmt.Fprintf(stderr, "sandboxgen: "+format+"\n", args...) }
	}
	if f.worker {
		return worker(ctx, f, opts, stdout, stderr)
	}
	result, err := gen.Generate(ctx, opts)
	if err != nil {
		fmt.Fprintf(stderr, "sandboxgen: %v\n", err)
		return exitFault
	}
	if err := diagnose(f, result, stdout, stderr); err != nil {
		fmt.Fprintf(stderr, "sandboxgen: %v\n", err)
		return exitFault
	}
	if len(result.Diagnostics) > 0 {
		return exitFault
	}
	switch {
	case f.list:
		err = list(result, stdout)
	case f.check:
		if f.json {
			stdout = stderr // standard output is JSON and nothing else
		}
		return check(f, result, stdout, stderr)
	default:
		err = result.Commit()
	}
	if err != nil {
		fmt.Fprintf(stderr, "sandboxgen: %v\n", err)
		return exitFault
	}
	return exitOK
}

// worker builds a worker.
func worker(ctx context.Context, f *flags, opts *gen.Options, stdout, stderr io.Writer) int {
	faults, err := gen.BuildWorker(ctx, opts, gen.WorkerOptions{Target: f.target, Output: f.output})
	if err == nil {
		err = diagnose(f, &gen.Result{Diagnostics: faults}, stdout, stderr)
	}
	if err != nil {
		fmt.Fprintf(stderr, "sandboxgen: %v\n", err)
		return exitFault
	}
	if len(faults) > 0 {
		return exitFault
	}
	return exitOK
}

// diagnose prints the faults: lines for people, or with -json an array on
// standard output, which is there even when it is empty so that a program can
// always read it.
func diagnose(f *flags, result *gen.Result, stdout, stderr io.Writer) error {
	if f.json && f.list && len(result.Diagnostics) == 0 {
		return nil // the list is the JSON that was asked for
	}
	if !f.json {
		for _, d := range result.Diagnostics {
			fmt.Fprintln(stderr, d)
		}
		return nil
	}
	diagnostics := result.Diagnostics
	if diagnostics == nil {
		diagnostics = []gen.Diagnostic{}
	}
	return writeJSON(stdout, diagnostics)
}

// list prints the functions of all packages.
func list(result *gen.Result, stdout io.Writer) error {
	functions := []gen.Function{}
	for _, p := range result.Packages {
		functions = append(functions, p.Functions...)
	}
	return writeJSON(stdout, functions)
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "\t")
	return enc.Encode(v)
}

// check prints what would change.
func check(f *flags, result *gen.Result, stdout, stderr io.Writer) int {
	dir, err := filepath.Abs(f.dir)
	if err != nil {
		fmt.Fprintf(stderr, "sandboxgen: %v\n", err)
		return exitFault
	}
	code := exitOK
	for _, p := range result.Packages {
		if p.Changed() {
			fmt.Fprint(stdout, p.Diff(dir))
			fmt.Fprintf(stderr, "sandboxgen: output of %s is out of date; run go generate\n", cmp.Or(p.Path, p.Dir))
			code = exitFault
		}
	}
	return code
}
