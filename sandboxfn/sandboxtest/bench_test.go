package sandboxtest_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

// What a call is compared with: a bare echo of length-prefixed bytes, and
// net/rpc, each between two processes over a unix socket.

const envServer = "SANDBOXTEST_BENCH_SERVER" // kind and address

func serveBench(kind, address string) error {
	l, err := net.Listen("unix", address)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		if kind == "rpc" {
			go rpc.ServeConn(c)
			continue
		}
		go func() {
			defer c.Close()
			r := bufio.NewReader(c)
			for {
				b, err := readEcho(r)
				if err == nil {
					err = writeEcho(c, b)
				}
				if err != nil {
					return
				}
			}
		}()
	}
}

func readEcho(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(head[:]))
	_, err := io.ReadFull(r, b)
	return b, err
}

func writeEcho(c net.Conn, b []byte) error {
	head := binary.BigEndian.AppendUint32(make([]byte, 0, 4+100), uint32(len(b)))
	if len(b) <= 100 {
		_, err := c.Write(append(head, b...))
		return err
	}
	bufs := net.Buffers{head, b}
	_, err := bufs.WriteTo(c)
	return err
}

// Echo is the service of net/rpc.
type Echo struct{}

// Bytes returns what it is given.
func (Echo) Bytes(in []byte, out *[]byte) error {
	*out = in
	return nil
}

func startServer(b *testing.B, kind string) net.Conn {
	b.Helper()
	address := filepath.Join(b.TempDir(), "s")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envServer+"="+kind+" "+address)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	for range 500 {
		if c, err := net.Dial("unix", address); err == nil {
			b.Cleanup(func() { c.Close() })
			return c
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.Fatal("no server")
	return nil
}

var echoBytes = declare("echoBytes", func(_ context.Context, v []byte) ([]byte, error) { return v, nil })

// BenchmarkWarmCall measures all three in turns, in one run, and reports the
// ratios of the medians: x-echo is how many times as long as an echo a call
// takes, x-rpc how many times as long as one of net/rpc. The worker is a plain
// process, as their servers are, and then one in a sandbox, where each of its
// system calls passes the filter.
func BenchmarkWarmCall(b *testing.B) {
	for _, size := range []int{100, 1 << 20} {
		b.Run(fmt.Sprintf("%dB/process", size), func(b *testing.B) { benchWarm(b, sandboxtest.Process(b), size) })
		b.Run(fmt.Sprintf("%dB/sandbox", size), func(b *testing.B) { benchWarm(b, local(b), size) })
	}
}

func benchWarm(b *testing.B, ctx context.Context, size int) {
	data := make([]byte, size)
	raw := startServer(b, "echo")
	in := bufio.NewReader(raw)
	client := rpc.NewClient(startServer(b, "rpc"))
	defer client.Close()
	same := func(got []byte, err error) {
		if err == nil && len(got) != size {
			err = errors.New("not what was sent")
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	ways := []func(){
		func() { same(echoBytes.Call(ctx, data)) },
		func() {
			if err := writeEcho(raw, data); err != nil {
				b.Fatal(err)
			}
			same(readEcho(in))
		},
		func() {
			var out []byte
			err := client.Call("Echo.Bytes", data, &out)
			same(out, err)
		},
	}
	times := make([][]time.Duration, len(ways))
	turn := min(200, 200<<10/size+10)
	for b.Loop() {
		for i, way := range ways {
			for range turn {
				begin := time.Now()
				way()
				times[i] = append(times[i], time.Since(begin))
			}
		}
	}
	median := func(i int) float64 {
		slices.Sort(times[i])
		return float64(times[i][len(times[i])/2])
	}
	call, echo, rpc := median(0), median(1), median(2)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(call/1000, "call-µs")
	b.ReportMetric(echo/1000, "echo-µs")
	b.ReportMetric(rpc/1000, "rpc-µs")
	b.ReportMetric(call/echo, "x-echo")
	b.ReportMetric(call/rpc, "x-rpc")
}
