package sandboxtest_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

// peakMemory is the most memory this process has had at once, in bytes, since
// resetPeak.
func peakMemory() int64 {
	b, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(b)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	return 0
}

func resetPeak() error {
	debug.FreeOSMemory()
	return os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
}

var peak = declare("peak", func(_ context.Context, reset bool) (int64, error) {
	if reset {
		return 0, resetPeak()
	}
	return peakMemory(), nil
})

func TestSizes(t *testing.T) {
	ctx := sandboxtest.Process(t)
	f := echoBytes.With(sandboxfn.Options{Workers: sandboxfn.Workers{Max: 1}})
	for _, size := range []int{0, 64 << 10, 5 << 20, 33 << 20, 200 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			if size > 100<<20 && (testing.Short() || raceEnabled) {
				t.Skip("needs 1 GB of memory")
			}
			in := make([]byte, size)
			for i := range in {
				in[i] = byte(i >> 3)
			}
			if _, err := peak.Call(ctx, true); err != nil {
				t.Fatal(err)
			}
			if err := resetPeak(); err != nil {
				t.Fatal(err)
			}
			base := peakMemory() - int64(size) // the argument is ours already
			out, err := f.Call(ctx, in)
			if err != nil {
				t.Fatal(err)
			}
			here := peakMemory() - base
			there, err := peak.Call(ctx, false)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(in, out) {
				t.Error("not what was sent")
			}
			if size >= 33<<20 {
				t.Logf("peak: %.2f times the size here, %.2f in the worker", float64(here)/float64(size), float64(there)/float64(size))
				if !raceEnabled && (here > 3*int64(size) || there > 3*int64(size)) {
					t.Errorf("peak of %d bytes here and %d in the worker is three times the payload of %d or more", here, there, size)
				}
			}
		})
	}
	var many [][]byte
	for range 300 {
		many = append(many, make([]byte, 40_000))
	}
	if got, err := echoMany.Call(ctx, many); err != nil || len(got) != 300 || len(got[299]) != 40_000 {
		t.Errorf("many segments: %d, %v", len(got), err)
	}
}

var echoMany = declare("echoMany", func(_ context.Context, v [][]byte) ([][]byte, error) { return v, nil })
