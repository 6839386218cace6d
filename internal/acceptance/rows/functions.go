// Package rows has a function for each option that says how calls go, and for
// each way in which functions and their callers talk during a call.
package rows

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

//go:generate go tool sandboxgen

// ErrRow is an error that both sides know.
var ErrRow = errors.New("row")

// Sum is something to encode.
type Sum struct {
	Name  string
	Parts []float64
	Raw   []byte
}

// echoJSON returns what it is given.
//
//sandbox:func codec=json max_payload=64KiB template=base provider=local
//sandbox:with cpu=1 memory=256MiB disk=64MiB network=none startup_timeout=50s
func echoJSON(ctx context.Context, s Sum) (Sum, error) { return s, nil }

// flaky fails until it has been called for the n-th time in one worker.
//
//sandbox:func idempotent retries=3 backoff=1ms..5ms*2 workers=1
func flaky(ctx context.Context, n int) (int, error) {
	if calls++; calls < n {
		return calls, sandboxfn.Transient(ErrRow)
	}
	return calls, nil
}

var calls int

// speak prints and logs.
//
//sandbox:func log=slog
func speak(ctx context.Context, text string) error {
	fmt.Println(text)
	slog.InfoContext(ctx, "spoken", "text", text)
	return nil
}

// whisper prints what nobody wants to see.
//
//sandbox:func log=discard
func whisper(ctx context.Context, text string) error {
	fmt.Println(text)
	return nil
}

// inner says in which process it runs.
//
//sandbox:func network=none
func inner(ctx context.Context) (int, string, error) {
	ns, err := os.Readlink("/proc/self/ns/pid")
	return os.Getpid(), ns, err
}

// throughCaller calls inner in a sandbox of its own.
//
//sandbox:func
func throughCaller(ctx context.Context) (outer, in string, err error) {
	if outer, err = os.Readlink("/proc/self/ns/pid"); err == nil {
		_, in, err = Inner(ctx)
	}
	return outer, in, err
}

// inPlace calls inner in its own worker.
//
//sandbox:func nested=local
func inPlace(ctx context.Context) (outer, in string, err error) {
	if outer, err = os.Readlink("/proc/self/ns/pid"); err == nil {
		_, in, err = Inner(ctx)
	}
	return outer, in, err
}

// alone calls inner, which it may not.
//
//sandbox:func nested=refuse
func alone(ctx context.Context) error {
	_, _, err := Inner(ctx)
	return err
}

// count sends numbers with what tell makes of them, until it is left.
//
//sandbox:func grace=500ms
func count(ctx context.Context, n int, tell func(context.Context, int) (string, error)) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for i := range n {
			s, err := tell(ctx, i)
			if !yield(s, err) || err != nil {
				return
			}
		}
	}
}

// upper copies text in upper case.
//
//sandbox:func
func upper(ctx context.Context, from io.Reader, to io.Writer) (int, error) {
	b, err := io.ReadAll(from)
	if err != nil {
		return 0, err
	}
	return to.Write(bytes.ToUpper(b))
}

// join joins words as they come.
//
//sandbox:func
func join(ctx context.Context, words iter.Seq2[string, error]) (string, error) {
	var all []string
	for w, err := range words {
		if err != nil {
			return strings.Join(all, " "), err
		}
		all = append(all, w)
	}
	return strings.Join(all, " "), nil
}

// open opens a file of the sandbox.
//
//sandbox:func
func open(ctx context.Context, name string) (io.ReadCloser, error) { return os.Open(name) }

// double takes many numbers at once.
//
//sandbox:func batch=4 batch_wait=20ms
func double(ctx context.Context, n []int) ([]int, error) {
	for i := range n {
		n[i] *= 2
	}
	return n, nil
}

// wrong returns too few.
//
//sandbox:func batch=2
func wrong(ctx context.Context, n []int) ([]int, error) { return n[1:], nil }

// rest sleeps, whatever its context says.
//
//sandbox:func timeout=200ms grace=100ms idle=1s spare=0
func rest(ctx context.Context, d time.Duration) error {
	time.Sleep(d)
	return nil
}
