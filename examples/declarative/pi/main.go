// Command pi estimates π in several sandboxes at once, with a progress bar that
// the functions in the sandboxes move.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"math"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

//go:generate go tool sandboxgen

// inCircle throws n darts at a square and counts those in the circle. It tells
// progress how many it has thrown since it told last.
//
//sandbox:func workers=4 timeout=1m memory=256MiB network=none
func inCircle(ctx context.Context, seed uint64, n int, progress func(thrown int)) (int, error) {
	const step = 1 << 20
	r := rand.New(rand.NewPCG(seed, 0))
	hits := 0
	for left := n; left > 0 && ctx.Err() == nil; {
		now := min(left, step)
		for range now {
			x, y := r.Float64(), r.Float64()
			if x*x+y*y < 1 {
				hits++
			}
		}
		left -= now
		progress(now)
	}
	return hits, ctx.Err()
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("pi", flag.ContinueOnError)
	flags.SetOutput(stderr)
	calls := flags.Int("calls", 32, "how many calls to make")
	darts := flags.Int("darts", 2_000_000, "darts of each call")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 || *calls < 1 || *darts < 1 {
		if err == nil {
			fmt.Fprintln(stderr, "usage: pi [-calls N] [-darts N], both at least 1")
		}
		return 2
	}
	start := time.Now()
	pi, err := estimate(ctx, *calls, *darts, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "pi:", err)
		if e, ok := errors.AsType[*sandboxfn.Error](err); ok && e.Hint() != "" {
			fmt.Fprintln(stderr, "pi: hint:", e.Hint())
		}
		return 1
	}
	fmt.Fprintf(stdout, "π ≈ %.6f, off by %.6f, in %v\n", pi, math.Abs(pi-math.Pi), time.Since(start).Round(time.Millisecond))
	return 0
}

// estimate makes the calls; what their callbacks tell moves the bar on w.
func estimate(ctx context.Context, calls, darts int, w io.Writer) (float64, error) {
	total := int64(calls) * int64(darts)
	var thrown atomic.Int64 // callbacks of calls that run at once meet here
	progress := func(n int) { bar(w, float64(thrown.Add(int64(n)))/float64(total)) }

	var inputs iter.Seq[InCircleArgs] = func(yield func(InCircleArgs) bool) {
		for seed := range uint64(calls) {
			if !yield(InCircleArgs{Seed: seed, N: darts, Progress: progress}) {
				return
			}
		}
	}
	hits := 0
	for n, err := range InCircleFunc.Map(ctx, inputs) { // generated from inCircle
		if err != nil {
			return 0, err
		}
		hits += n
	}
	fmt.Fprintln(w)
	return 4 * float64(hits) / float64(total), nil
}

// bar draws with one write, so that callbacks need not wait for each other.
func bar(w io.Writer, done float64) {
	const width = 40
	n := min(width, int(done*width))
	fmt.Fprintf(w, "\r[%s%s] %3.0f%%", strings.Repeat("#", n), strings.Repeat(".", width-n), 100*done)
}
