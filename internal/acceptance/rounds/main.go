// Command rounds creates a sandbox, calls a function in it and ends both, as
// often as it is told, each time with a client of its own. Then it compares its
// descriptors, goroutines and mounts with those after the first rounds. The
// acceptance tests run it to completion, and kill it at random moments.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/acceptance/fns"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

func run(args []string, stderr io.Writer) int {
	if len(args) != 1 {
		fmt.Fprintln(stderr, "usage: rounds COUNT")
		return 2
	}
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 1 {
		fmt.Fprintf(stderr, "rounds: %q is not a positive number\n", args[0])
		return 2
	}
	if err := rounds(context.Background(), n); err != nil {
		fmt.Fprintln(stderr, "rounds:", err)
		return 1
	}
	return 0
}

// warmUp is how many rounds come before the first count: what is made once per
// process is there by then.
const warmUp = 3

func rounds(ctx context.Context, n int) error {
	var before held
	for i := range warmUp + n {
		if i == warmUp {
			before = count()
		}
		if err := round(ctx, i); err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
	}
	for range 1000 { // what ends by itself may take a moment
		after := count()
		if after.descriptors <= before.descriptors && after.goroutines <= before.goroutines && after.mounts == before.mounts {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("held before %+v, after %+v", before, count())
}

func round(ctx context.Context, i int) error {
	c, err := sandboxfn.NewClient(nil)
	if err != nil {
		return err
	}
	sum, err := fns.Add(sandboxfn.WithClient(ctx, c), i, 1)
	if closeErr := c.Close(); err == nil {
		err = closeErr
	}
	if err == nil && sum != i+1 {
		err = fmt.Errorf("sum is %d", sum)
	}
	return err
}

// held is what a process holds that could leak.
type held struct{ descriptors, goroutines, mounts int }

// count counts what this process holds. Of the mounts, which all programs of the
// machine make and remove, those of the state directory count.
func count() held {
	fds, _ := os.ReadDir("/proc/self/fd")
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	return held{len(fds), runtime.NumGoroutine(), bytes.Count(mounts, []byte(os.Getenv("SANDBOX_STATE_DIR")+"/"))}
}
