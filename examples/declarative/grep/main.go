// Command grep searches many files in a sandbox, and prints what it finds while
// the search goes on.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

//go:generate go tool sandboxgen

// Match is a line that was found.
type Match struct {
	File string // base name
	Line int    // from 1
	Text string
}

// search finds the lines of files that match a pattern. The paths are those of
// the caller: the files are copied into the sandbox, which sees nothing else.
//
//sandbox:func in=files timeout=1m memory=256MiB network=none
func search(ctx context.Context, pattern string, files ...string) (iter.Seq2[Match, error], error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	return func(yield func(Match, error) bool) {
		for _, name := range files {
			if err := searchFile(name, re, yield); err != nil {
				if err != errLeft {
					yield(Match{}, err)
				}
				return
			}
		}
	}, nil
}

// errLeft says that nobody wants more.
var errLeft = errors.New("left")

func searchFile(name string, re *regexp.Regexp, yield func(Match, error) bool) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		if re.Match(lines.Bytes()) && !yield(Match{filepath.Base(name), n, lines.Text()}, nil) {
			return errLeft
		}
	}
	return lines.Err()
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run has the exit status of grep: 0 when something was found, 1 when nothing
// was, 2 after an error.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) < 2 {
		fmt.Fprintln(stderr, "usage: grep PATTERN FILE…")
		return 2
	}
	code := 1
	for m, err := range Search(ctx, args[0], args[1:]...) { // generated from search
		if err != nil {
			fmt.Fprintln(stderr, "grep:", err)
			if e, ok := errors.AsType[*sandboxfn.Error](err); ok && e.Hint() != "" {
				fmt.Fprintln(stderr, "grep: hint:", e.Hint())
			}
			return 2
		}
		code = 0
		if _, err := fmt.Fprintf(stdout, "%s:%d: %s\n", m.File, m.Line, m.Text); err != nil {
			return 2 // leaving the loop ends the function
		}
	}
	return code
}
