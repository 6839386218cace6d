package sandboxtest_test

import (
	"bufio"
	"context"
	"iter"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

// BenchmarkSharedCalls compares calls per second of 16 callers who share one
// worker, over one connection, with echoes per second over 16 connections.
func BenchmarkSharedCalls(b *testing.B) {
	const callers, each = 16, 500
	ctx := sandboxtest.Process(b)
	f := echoBytes.With(sandboxfn.Options{Concurrency: callers, Workers: sandboxfn.Workers{Max: 1}})
	data := make([]byte, 100)
	if _, err := f.Call(ctx, data); err != nil {
		b.Fatal(err)
	}
	first := startServer(b, "echo")
	conns := []net.Conn{first}
	for len(conns) < callers {
		c, err := net.Dial("unix", first.RemoteAddr().String())
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { c.Close() })
		conns = append(conns, c)
	}
	together := func(do func(i int) error) time.Duration {
		begin := time.Now()
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				for range each {
					if err := do(i); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		return time.Since(begin)
	}
	var readers []*bufio.Reader
	for _, c := range conns {
		readers = append(readers, bufio.NewReader(c))
	}
	var calls, echoes []time.Duration
	for b.Loop() {
		calls = append(calls, together(func(int) error {
			_, err := f.Call(ctx, data)
			return err
		}))
		echoes = append(echoes, together(func(i int) error {
			if err := writeEcho(conns[i], data); err != nil {
				return err
			}
			_, err := readEcho(readers[i])
			return err
		}))
	}
	slices.Sort(calls)
	slices.Sort(echoes)
	call, echo := calls[len(calls)/2], echoes[len(echoes)/2]
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(callers*each/call.Seconds(), "calls/s")
	b.ReportMetric(callers*each/echo.Seconds(), "echoes/s")
	b.ReportMetric(echo.Seconds()/call.Seconds(), "x-echoes")
}

var mebibytes = declareStream("mebibytes", func(ctx context.Context, n int) (iter.Seq2[[]byte, error], error) {
	return func(yield func([]byte, error) bool) {
		b := make([]byte, 1<<20)
		for range n {
			if !yield(b, nil) {
				return
			}
		}
	}, nil
})

// BenchmarkStream compares items of 1 MiB that a function streams with echoes of
// 1 MiB, which go there and back.
func BenchmarkStream(b *testing.B) {
	const items = 64
	ctx := sandboxtest.Process(b)
	raw := startServer(b, "echo")
	in := bufio.NewReader(raw)
	data := make([]byte, 1<<20)
	var streams, echoes []time.Duration
	for b.Loop() {
		begin := time.Now()
		n := 0
		for v, err := range mebibytes.Stream(ctx, items) {
			if err != nil || len(v) != len(data) {
				b.Fatal(len(v), err)
			}
			n++
		}
		if n != items {
			b.Fatal(n)
		}
		streams = append(streams, time.Since(begin))
		begin = time.Now()
		for range items {
			if err := writeEcho(raw, data); err != nil {
				b.Fatal(err)
			}
			if _, err := readEcho(in); err != nil {
				b.Fatal(err)
			}
		}
		echoes = append(echoes, time.Since(begin))
	}
	slices.Sort(streams)
	slices.Sort(echoes)
	stream, echo := streams[len(streams)/2], echoes[len(echoes)/2]
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(items/stream.Seconds(), "MiB/s")
	b.ReportMetric(stream.Seconds()/echo.Seconds(), "x-echo")
}
