//go:build linux

package server

import (
	"context"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/creack/pty"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
)

// BenchmarkCommand compares a command through the server with the same program
// started directly, in turns, so that both meet the same machine. Both ways give
// the status and what was printed on each output. The metric ratio is what the
// server costs: 1 would be nothing.
func BenchmarkCommand(b *testing.B) {
	b.Run("true", func(b *testing.B) { benchCommand(b, "/bin/true") })
	b.Run("shell", func(b *testing.B) { benchCommand(b, "/bin/sh", "-c", "echo out; echo err >&2") })
}

func benchCommand(b *testing.B, name string, args ...string) {
	if _, err := exec.LookPath(name); err != nil {
		b.Skip(err)
	}
	r := newRig(b, nil)
	client, err := envd.New(&envd.Options{Token: testToken, Dial: func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", r.socket)
	}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(client.Close)
	direct, served := time.Duration(0), time.Duration(0)
	for b.Loop() {
		began := time.Now()
		var stdout, stderr strings.Builder
		cmd := exec.Command(name, args...)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			b.Fatal(err)
		}
		middle := time.Now()
		res, err := runEnvd(b.Context(), client, &envd.StartOptions{Path: name, Args: args})
		if err != nil {
			b.Fatal(err)
		}
		direct += middle.Sub(began)
		served += time.Since(middle)
		if res.stdout != stdout.String() || res.stderr != stderr.String() || res.code != 0 {
			b.Fatalf("got %+v", res)
		}
	}
	b.ReportMetric(float64(served)/float64(direct), "ratio")
	b.ReportMetric(float64(direct.Microseconds())/float64(b.N), "µs/direct")
	b.ReportMetric(float64(served.Microseconds())/float64(b.N), "µs/served")
}

type envdResult struct {
	stdout, stderr string
	code           int
}

// runEnvd runs a command with the client of this module.
func runEnvd(ctx context.Context, c *envd.Client, o *envd.StartOptions) (res envdResult, err error) {
	stream, err := c.Start(ctx, o)
	if err != nil {
		return res, err
	}
	defer stream.Close(nil)
	for {
		ev, err := stream.Next()
		if err != nil {
			return res, err
		}
		res.stdout += string(ev.Stdout)
		res.stderr += string(ev.Stderr)
		if ev.End != nil {
			res.code = ev.End.ExitCode
			return res, nil
		}
	}
}

// echoProgram answers each key.
var echoProgram = []string{"-c", "stty raw -echo; echo ready; exec cat"}

// BenchmarkKeystroke compares the way of a key to a program in a terminal and of
// the answer back: through the server, and over a terminal of this process. The
// metric ratio is what the server costs.
func BenchmarkKeystroke(b *testing.B) {
	direct, served := directKeys(b), servedKeys(b)
	var near, far time.Duration
	for b.Loop() {
		began := time.Now()
		direct()
		middle := time.Now()
		served()
		near += middle.Sub(began)
		far += time.Since(middle)
	}
	b.ReportMetric(float64(far)/float64(near), "ratio")
	b.ReportMetric(float64(near.Microseconds())/float64(b.N), "µs/direct")
	b.ReportMetric(float64(far.Microseconds())/float64(b.N), "µs/served")
}

// directKeys returns what types a key and waits for its answer.
func directKeys(b *testing.B) func() {
	cmd := exec.Command("/bin/sh", echoProgram...)
	term, err := pty.Start(cmd)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		term.Close()
	})
	read := func(n int) {
		if _, err := io.ReadFull(term, make([]byte, n)); err != nil {
			b.Fatal(err)
		}
	}
	read(len("ready\n")) // raw: no carriage return is added
	return func() {
		if _, err := term.Write([]byte("k")); err != nil {
			b.Fatal(err)
		}
		read(1)
	}
}

func servedKeys(b *testing.B) func() {
	r := newRig(b, nil)
	out, err := r.process.Start(b.Context(), connect.NewRequest(inTerminal(0, 0, "/bin/sh", echoProgram...)))
	if err != nil {
		b.Fatal(err)
	}
	if !out.Receive() {
		b.Fatal(out.Err())
	}
	pid := out.Msg().GetEvent().GetStart().GetPid()
	read := func(n int) {
		for n > 0 && out.Receive() {
			n -= len(out.Msg().GetEvent().GetData().GetPty())
		}
		if err := out.Err(); err != nil {
			b.Fatal(err)
		}
	}
	read(len("ready\n"))
	in := r.process.StreamInput(b.Context())
	send := func(m *pb.StreamInputRequest) {
		if err := in.Send(m); err != nil {
			b.Fatal(err)
		}
	}
	send(inputStart(pid))
	b.Cleanup(func() {
		r.signal(context.WithoutCancel(b.Context()), pid, pb.Signal_SIGNAL_SIGKILL)
		in.CloseAndReceive()
		out.Close()
	})
	key := &pb.StreamInputRequest{Event: &pb.StreamInputRequest_Data{Data: &pb.StreamInputRequest_DataEvent{
		Input: &pb.ProcessInput{Input: &pb.ProcessInput_Pty{Pty: []byte("k")}},
	}}}
	return func() {
		send(key)
		read(1)
	}
}

// BenchmarkSSEFirstByte compares the time until the first output of a shell line is
// there: as an event of POST /shell/stream, and from a pipe of this process. The
// metric ratio is what the server costs.
func BenchmarkSSEFirstByte(b *testing.B) {
	r := newRig(b, nil)
	direct, served := time.Duration(0), time.Duration(0)
	for b.Loop() {
		began := time.Now()
		cmd := exec.Command("/bin/sh", "-c", "echo first; exec cat")
		in, err := cmd.StdinPipe()
		if err != nil {
			b.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, len("first\n"))); err != nil {
			b.Fatal(err)
		}
		direct += time.Since(began)
		in.Close()
		if err := cmd.Wait(); err != nil {
			b.Fatal(err)
		}

		began = time.Now()
		next, closed := r.events(b, "POST", "/shell/stream", `{"command":"echo first; exec cat","stdin":""}`)
		for e := next(); e.name != "stdout"; e = next() {
			if e.name == "" {
				b.Fatal("no output")
			}
		}
		served += time.Since(began)
		for e := next(); e.name != ""; e = next() {
		}
		closed()
	}
	b.ReportMetric(float64(served)/float64(direct), "ratio")
	b.ReportMetric(float64(direct.Microseconds())/float64(b.N), "µs/direct")
	b.ReportMetric(float64(served.Microseconds())/float64(b.N), "µs/served")
}

// BenchmarkKeystrokeWebSocket is [BenchmarkKeystroke] through the WebSocket of the
// HTTP API.
func BenchmarkKeystrokeWebSocket(b *testing.B) {
	direct := directKeys(b)
	r := newRig(b, nil)
	s := r.attach(b, r.openTerminal(b, `{"shell":"/bin/sh"}`))
	s.typed("stty raw -echo; echo rea''dy; exec cat\n")
	s.until("ready\n")
	served := func() {
		s.typed("k")
		if _, key, err := s.Read(b.Context()); err != nil || string(key) != "k" {
			b.Fatalf("got %q, %v", key, err)
		}
	}
	var near, far time.Duration
	for b.Loop() {
		began := time.Now()
		direct()
		middle := time.Now()
		served()
		near += middle.Sub(began)
		far += time.Since(middle)
	}
	b.ReportMetric(float64(far)/float64(near), "ratio")
	b.ReportMetric(float64(near.Microseconds())/float64(b.N), "µs/direct")
	b.ReportMetric(float64(far.Microseconds())/float64(b.N), "µs/served")
}
