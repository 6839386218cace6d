//go:build linux

package server

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/runtime/process"
)

const testChannel = "0123456789abcdef0123456789abcdef"

// openChannel upgrades a connection of r under id.
func openChannel(t *testing.T, r *rig, id string, headers ...string) (net.Conn, *http.Response) {
	t.Helper()
	conn, err := net.Dial("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	req := "POST /sandbox/channels/" + id + " HTTP/1.1\r\nHost: sandbox\r\n"
	if len(headers) == 0 {
		headers = []string{"Connection: Upgrade", "Upgrade: sandbox-frames/1", tokenHeader + ": " + testToken}
	}
	if _, err := fmt.Fprintf(conn, "%s%s\r\n\r\n", req, strings.Join(headers, "\r\n")); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return conn, resp
}

func TestChannelReachesProcess(t *testing.T) {
	r := newRig(t, nil)
	conn, resp := openChannel(t, r, testChannel)
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("got %s", resp.Status)
	}
	go func() {
		io.WriteString(conn, "question\n")
	}()
	done := make(chan *result, 1)
	go func() {
		res, err := r.run(t.Context(), sh("read line <&3; echo \"answer to $line\" >&3; echo printed; test -e /proc/self/fd/4 && echo counted"), process.ChannelHeader, testChannel)
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	got, err := io.ReadAll(conn) // ends when the process has ended: we keep no copy
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != "answer to question\n" {
		t.Errorf("got %q", got)
	}
	if res := <-done; res == nil || res.stdout != "printed\ncounted\n" {
		t.Errorf("got %+v", res)
	}
}

// The environment of a worker may hold secrets, and is not in lists.
func TestChannelKeepsEnvironment(t *testing.T) {
	r := newRig(t, nil)
	conn, _ := openChannel(t, r, testChannel)
	req := sh("echo $WORD >&3; read end <&3")
	req.Process.Envs = map[string]string{"WORD": "hidden"}
	done := make(chan error, 1)
	go func() {
		_, err := r.run(t.Context(), req, process.ChannelHeader, testChannel)
		done <- err
	}()
	got := make([]byte, len("hidden\n"))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hidden\n" {
		t.Fatalf("got %q, %v", got, err)
	}
	list, err := r.process.List(t.Context(), connect.NewRequest(&pb.ListRequest{}))
	if err != nil || len(list.Msg.Processes) != 1 || strings.Contains(list.Msg.String(), "hidden") || list.Msg.Processes[0].Config.Cmd != req.Process.Cmd {
		t.Errorf("list %v, %v", list, err)
	}
	io.WriteString(conn, "\n")
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestChannelRefusals(t *testing.T) {
	r := newRig(t, nil)
	upgrade := []string{"Connection: keep-alive, upgrade", "Upgrade: sandbox-frames/1", tokenHeader + ": " + testToken}
	for _, c := range []struct {
		name, id string
		headers  []string
		status   int
	}{
		{"no token", testChannel, upgrade[:2], 401},
		{"short id", "abc", upgrade, 400},
		{"upper case id", strings.ToUpper(testChannel), upgrade, 400},
		{"no upgrade", testChannel, upgrade[2:], 426},
		{"other protocol", testChannel, []string{upgrade[0], "Upgrade: websocket", upgrade[2]}, 426},
		{"bearer", "00000000000000000000000000000000", []string{upgrade[0], upgrade[1], "Authorization: Bearer " + testToken}, 101},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, resp := openChannel(t, r, c.id, c.headers...)
			if resp.StatusCode != c.status {
				t.Errorf("got %s, want %d", resp.Status, c.status)
			}
		})
	}
	openChannel(t, r, testChannel)
	if _, resp := openChannel(t, r, testChannel); resp.StatusCode != http.StatusConflict {
		t.Errorf("id in use: got %s", resp.Status)
	}
	_, err := r.run(t.Context(), sh("true"), process.ChannelHeader, strings.Repeat("f", 32))
	if connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("unknown channel: got %v", err)
	}
	// A program that does not start must not hold the connection.
	conn, _ := openChannel(t, r, strings.Repeat("1", 32))
	res, err := r.run(t.Context(), &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/no/such"}}, process.ChannelHeader, strings.Repeat("1", 32))
	if err != nil || res.end.GetExitCode() != 127 || res.trailer.Get(fault.Header) != "E3007" {
		t.Errorf("missing program: got %+v, %v", res, err)
	}
	conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("connection of a failed start: got %v, want EOF", err)
	}
}

func TestParkedChannelsEnd(t *testing.T) {
	r := newRig(t, nil)
	ended := func(conn net.Conn) bool {
		conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		_, err := conn.Read(make([]byte, 1))
		return err == io.EOF
	}
	parked := func(id string) *parked {
		r.channels.mu.Lock()
		defer r.channels.mu.Unlock()
		return r.channels.parked[id]
	}
	first, _ := openChannel(t, r, testChannel)
	slot := parked(testChannel)
	<-slot.ready
	r.channels.expire(testChannel, slot) // as its timer does
	if !ended(first) {
		t.Error("a channel that nobody asked for is still open")
	}
	// The id is free again, and a late timer does not touch its next owner.
	second, resp := openChannel(t, r, testChannel)
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("got %s", resp.Status)
	}
	r.channels.expire(testChannel, slot)
	if parked(testChannel) == nil {
		t.Error("a late timer ended the next channel of that id")
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if !ended(second) {
		t.Error("a channel outlived the server")
	}
}

// TestChannelOverTCP: the connection need not be a unix socket.
func TestChannelOverTCP(t *testing.T) {
	r := newRig(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() { _ = r.Serve(l) }) // ends with the rig
	t.Cleanup(served.Wait)
	t.Cleanup(func() { l.Close() })
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /sandbox/channels/%s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: sandbox-frames/1\r\n%s: %s\r\n\r\n", testChannel, tokenHeader, testToken)
	if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("got %v, %v", resp, err)
	}
	if _, err := r.run(t.Context(), sh("echo hello >&3"), process.ChannelHeader, testChannel); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || string(got) != "hello\n" {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestCounterIsAheadOfPipe runs this test binary as a worker that prints and,
// whenever its pipe is empty, finds all it has printed in the counter.
func TestCounterIsAheadOfPipe(t *testing.T) {
	if os.Getenv("COUNTER_CHILD") != "" {
		counterChild()
	}
	r := newRig(t, func(o *Options) { o.Env = map[string]string{"COUNTER_CHILD": "1"} })
	conn, _ := openChannel(t, r, testChannel)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan *result, 1)
	go func() {
		res, err := r.run(t.Context(), &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: self, Args: []string{"-test.run=^TestCounterIsAheadOfPipe$"}}}, process.ChannelHeader, testChannel)
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	verdict, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	if string(verdict) != "good" {
		t.Errorf("worker says %q", verdict)
	}
	want := 0
	for i := range 500 {
		want += counterStep(i)
	}
	if res := <-done; res != nil && len(res.stdout) != want {
		t.Errorf("got %d bytes of output, want %d", len(res.stdout), want)
	}
}

func counterStep(i int) int { return 100 + i*37%4000 }

func counterChild() {
	conn := os.NewFile(3, "channel")
	verdict := "good"
	var want uint64
	for i := range 500 {
		n := counterStep(i)
		os.Stdout.Write(make([]byte, n))
		want += uint64(n)
		for {
			left, err := unix.IoctlGetInt(1, unix.TIOCINQ)
			if err != nil {
				verdict = err.Error()
				break
			}
			if left > 0 {
				continue
			}
			var b [16]byte
			unix.Pread(4, b[:], 0)
			if got := binary.LittleEndian.Uint64(b[:]); got != want {
				verdict = fmt.Sprintf("counter %d after %d bytes", got, want)
			}
			break
		}
	}
	conn.WriteString(verdict)
	conn.Close()
	os.Exit(0)
}
