// Command commands uses a sandbox directly, without annotated functions: it
// writes a file into it, runs programs on it, talks to one through its standard
// input, and reads a result back.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "commands:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, w io.Writer) (err error) {
	sb, err := sandboxfn.Create(ctx, &sandboxfn.CreateOptions{
		Lifetime: 2 * time.Minute,
		Env:      map[string]string{"GREETING": "hello"},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sb.Close()) }()

	// Files: the sandbox has a file system of its own.
	fsys := sb.FS(ctx)
	if err := fsys.WriteFile("words.txt", []byte("pear\napple\nfig\napple\n"), 0o644); err != nil {
		return err
	}

	// Commands: the shape of os/exec.
	out, err := sb.Command(ctx, "sort", "-u", "words.txt").Output()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "sorted: %s\n", strings.Join(strings.Fields(string(out)), " "))

	// A shell line is asked for by name, never guessed.
	out, err = sb.Shell(ctx, `echo "$GREETING from $(hostname)" | tee greeting.txt`).Output()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "shell: %s", out)
	text, err := fs.ReadFile(fsys, "greeting.txt")
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "file: %s", text)

	// Standard input.
	cmd := sb.Command(ctx, "tr", "a-z", "A-Z")
	cmd.Stdin = strings.NewReader("typed in\n")
	if out, err = cmd.Output(); err != nil {
		return err
	}
	fmt.Fprintf(w, "input: %s", out)

	// A non-zero exit is an *ExitError, as in os/exec.
	err = sb.Shell(ctx, "exit 3").Run()
	if exit, ok := errors.AsType[*sandboxfn.ExitError](err); ok {
		fmt.Fprintf(w, "exit code: %d\n", exit.ExitCode)
	}

	// What is not there is fs.ErrNotExist.
	_, err = fs.Stat(fsys, "nothing.txt")
	fmt.Fprintf(w, "missing file: %v\n", errors.Is(err, fs.ErrNotExist))

	// This machine's files are not there either.
	_, err = fs.Stat(fsys, "/etc/shadow")
	fmt.Fprintf(w, "no /etc/shadow: %v\n", errors.Is(err, fs.ErrNotExist))
	return nil
}
