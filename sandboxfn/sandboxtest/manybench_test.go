package sandboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

// BenchmarkMap runs 10,000 small calls in four ways, in turns, in one run, and
// reports the ratios of the medians: x-calls is how many times as long Map takes
// as a loop that makes one Call after the other, x-loop how many times as long
// as a loop written by hand, with as many goroutines as Map has. work-µs is what
// the function itself takes, called here.
func BenchmarkMap(b *testing.B) {
	for _, workers := range []int{1, 2, 16} {
		b.Run(fmt.Sprintf("%d workers", workers), func(b *testing.B) {
			benchMap(b, sandboxtest.Process(b), workers)
		})
	}
}

func benchMap(b *testing.B, ctx context.Context, workers int) {
	const n = 10_000
	f := double.With(sandboxfn.Options{Workers: sandboxfn.Workers{Max: workers}})
	in := slices.Collect(upTo(n, nil))
	if _, err := f.Collect(ctx, in[:2*workers]); err != nil { // starts the workers
		b.Fatal(err)
	}
	check := func(sum int, err error) {
		if err == nil && sum != n*(n-1) {
			err = errors.New("wrong sum")
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	ways := []func() (int, error){
		func() (sum int, err error) { // Map
			for v, e := range f.Map(ctx, slices.Values(in)) {
				sum, err = sum+v, errors.Join(err, e)
			}
			return sum, err
		},
		func() (sum int, err error) { // one after the other
			for _, a := range in {
				v, e := f.Call(ctx, a)
				sum, err = sum+v, errors.Join(err, e)
			}
			return sum, err
		},
		func() (sum int, err error) { // by hand
			jobs := make(chan int)
			results := make([]int, n)
			errs := make([]error, n)
			var wg sync.WaitGroup
			for range 2 * workers {
				wg.Go(func() {
					for i := range jobs {
						results[i], errs[i] = f.Call(ctx, in[i])
					}
				})
			}
			for i := range in {
				jobs <- i
			}
			close(jobs)
			wg.Wait()
			for _, v := range results {
				sum += v
			}
			return sum, errors.Join(errs...)
		},
		func() (sum int, err error) { // no sandbox
			for _, a := range in {
				v, e := f.Local(ctx, a)
				sum, err = sum+v, errors.Join(err, e)
			}
			return sum, err
		},
	}
	times := make([][]time.Duration, len(ways))
	for b.Loop() {
		for i, way := range ways {
			begin := time.Now()
			check(way())
			times[i] = append(times[i], time.Since(begin))
		}
	}
	median := func(i int) float64 {
		slices.Sort(times[i])
		return float64(times[i][len(times[i])/2]) / n
	}
	mapped, calls, loop, work := median(0), median(1), median(2), median(3)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(mapped/1000, "map-µs")
	b.ReportMetric(calls/1000, "call-µs")
	b.ReportMetric(loop/1000, "loop-µs")
	b.ReportMetric(work/1000, "work-µs")
	b.ReportMetric(mapped/calls, "x-calls")
	b.ReportMetric(mapped/loop, "x-loop")
}
