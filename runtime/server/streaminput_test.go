//go:build linux

package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
)

func inputStart(pid uint32) *pb.StreamInputRequest {
	return &pb.StreamInputRequest{Event: &pb.StreamInputRequest_Start{Start: &pb.StreamInputRequest_StartEvent{Process: byPid(pid)}}}
}

func inputData(b []byte) *pb.StreamInputRequest {
	return &pb.StreamInputRequest{Event: &pb.StreamInputRequest_Data{Data: &pb.StreamInputRequest_DataEvent{
		Input: &pb.ProcessInput{Input: &pb.ProcessInput_Stdin{Stdin: b}},
	}}}
}

var inputKeepalive = &pb.StreamInputRequest{Event: &pb.StreamInputRequest_Keepalive{Keepalive: &pb.StreamInputRequest_KeepAlive{}}}

// TestStreamInput: much input arrives whole and in order, at the speed of the
// process; the stream leaves the input open.
func TestStreamInput(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	text := make([]byte, 10<<20)
	rand.NewChaCha8([32]byte{1}).Read(text)
	res, err := r.runWith(t.Context(), sh("echo ready; sleep 0.5; sha256sum; echo end"), func(pid uint32, out string) {
		if out != "ready\n" {
			return
		}
		stream := r.process.StreamInput(t.Context())
		send := func(m *pb.StreamInputRequest) {
			if err := stream.Send(m); err != nil {
				t.Errorf("send: %v", err)
			}
		}
		send(inputStart(pid))
		for piece := text; len(piece) > 0; {
			n := min(len(piece), rand.IntN(200_000)+1)
			send(inputData(piece[:n]))
			send(inputKeepalive)
			piece = piece[n:]
		}
		if _, err := stream.CloseAndReceive(); err != nil {
			t.Errorf("answer: %v", err)
		}
		if _, err := r.process.CloseStdin(t.Context(), connect.NewRequest(&pb.CloseStdinRequest{Process: byPid(pid)})); err != nil {
			t.Error(err)
		}
	})
	if want := fmt.Sprintf("ready\n%x  -\nend\n", sha256.Sum256(text)); err != nil || res.stdout != want {
		t.Errorf("got %q, %v; want %q", res.stdout, err, want)
	}
}

func TestStreamInputRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	converse(t, r, sh("echo ready; read line"), step{"ready", func(pid uint32) error {
		start := fmt.Sprintf(`{"start":{"process":{"pid":%d}}}`, pid)
		for _, c := range []struct {
			name     string
			messages []string
			want     string
		}{
			{"data first", []string{`{"data":{"input":{"stdin":"eA=="}}}`}, "invalid_argument"},
			{"two starts", []string{start, start}, "invalid_argument"},
			{"nobody", []string{`{"start":{"process":{"pid":999999}}}`}, "not_found"},
			{"no selector", []string{`{"start":{}}`}, "unimplemented"},
			{"no event", []string{`{}`}, "unimplemented"},
			{"no input", []string{start, `{"data":{}}`}, "unimplemented"},
			{"keys", []string{start, `{"data":{"input":{"pty":"eA=="}}}`}, "internal"},
			{"no message", []string{start, `{`}, "invalid_argument"},
		} {
			// The stream stays open: an answer comes all the same.
			_, br := rawInput(t, r, c.messages...)
			if got := endCode(t, br); got != c.want {
				t.Errorf("%s: got %q, want %q", c.name, got, c.want)
			}
		}
		for _, m := range [][]*pb.StreamInputRequest{nil, {inputKeepalive}, {inputStart(pid), inputData([]byte("line\n"))}} {
			stream := r.process.StreamInput(t.Context())
			for _, m := range m {
				if err := stream.Send(m); err != nil {
					t.Error(err)
				}
			}
			if _, err := stream.CloseAndReceive(); err != nil {
				t.Errorf("after %v: %v", m, err)
			}
		}
		return nil
	}})
}

// rawInput opens a stream of input by hand, so that it can be left open.
func rawInput(t *testing.T, r *rig, messages ...string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST /process.Process/StreamInput HTTP/1.1\r\nHost: s\r\nContent-Type: application/connect+json\r\n%s: %s\r\nTransfer-Encoding: chunked\r\n\r\n", tokenHeader, testToken)
	for _, m := range messages {
		chunk := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m)))
		fmt.Fprintf(&b, "%x\r\n%s%s\r\n", len(chunk)+len(m), chunk, m)
	}
	if _, err := conn.Write(b.Bytes()); err != nil {
		t.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}

// endCode is the code in the end of the stream that is read from br.
func endCode(t *testing.T, br *bufio.Reader) string {
	t.Helper()
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	flags, payload, _, ok := cutEnvelope(raw)
	var end struct{ Error struct{ Code string } }
	if !ok || flags != 2 || json.Unmarshal(payload, &end) != nil {
		t.Fatalf("got %q", raw)
	}
	return end.Error.Code
}

// TestStreamInputEndsWithProcess: a client that keeps its stream open learns at
// once that the process has ended.
func TestStreamInputEndsWithProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var open *bufio.Reader
	if _, err := r.runWith(t.Context(), sh("echo ready; read line; echo $line; read line"), func(pid uint32, out string) {
		switch {
		case out == "ready\n":
			_, open = rawInput(t, r, fmt.Sprintf(`{"start":{"process":{"pid":%d}}}`, pid), `{"data":{"input":{"stdin":"aGkK"}}}`)
		case strings.HasSuffix(out, "hi\n"):
			r.signal(t.Context(), pid, pb.Signal_SIGNAL_SIGKILL)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if open == nil {
		t.Fatal("no stream")
	}
	if got := endCode(t, open); got != "not_found" {
		t.Errorf("got %q", got)
	}
}

// deadlines is a response writer that notes the deadline of reads.
type deadlines struct {
	http.ResponseWriter
	read time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.read = t
	return nil
}

// TestPatience: the deadline of a body in each state.
func TestPatience(t *testing.T) {
	d := &deadlines{}
	body := &patientBody{ReadCloser: io.NopCloser(strings.NewReader("abc")), control: http.NewResponseController(d)}
	body.Read(make([]byte, 1))
	if left := time.Until(d.read); left < bodyTimeout/2 || left > bodyTimeout {
		t.Errorf("a read may take %v", left)
	}
	body.Endless()
	body.Read(make([]byte, 1))
	if !d.read.IsZero() {
		t.Errorf("an endless body has the deadline %v", d.read)
	}
	body.Abort()
	body.Read(make([]byte, 9))
	body.Close()
	if d.read.IsZero() || d.read.After(time.Now()) {
		t.Errorf("an aborted body has the deadline %v", d.read)
	}
}

// TestRefusedInputLeavesTheConnection: the next request on it is answered.
func TestRefusedInputLeavesTheConnection(t *testing.T) {
	r := newRig(t, nil)
	for range 50 {
		in := r.process.StreamInput(t.Context())
		_ = in.Send(inputStart(999999)) // the answer says why
		if _, err := in.CloseAndReceive(); connect.CodeOf(err) != connect.CodeNotFound {
			t.Fatal(err)
		}
		if _, err := r.process.List(t.Context(), connect.NewRequest(&pb.ListRequest{})); err != nil {
			t.Fatal(err)
		}
	}
}

// FuzzStreamInput: no body makes the server panic, and each gets an answer. The
// processes are there to be found.
func FuzzStreamInput(f *testing.F) {
	r := newRig(f, nil)
	start := func(req *pb.StartRequest) uint32 {
		stream, err := r.process.Start(f.Context(), connect.NewRequest(req))
		if err != nil || !stream.Receive() {
			f.Fatal(err, stream.Err())
		}
		f.Cleanup(func() { stream.Close() })
		return stream.Msg().GetEvent().GetStart().GetPid()
	}
	cat := &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/bin/cat"}}
	for _, pid := range []uint32{start(cat), start(inTerminal(0, 0, "/bin/cat")), 999999} {
		for _, m := range []string{`{"data":{"input":{"stdin":"eA=="}}}`, `{"data":{"input":{"pty":"eA=="}}}`, `{"keepalive":{}}`, `{"start":{}}`, `{}`, `[`} {
			f.Add(pid, m, []byte{0, 0, 0, 0, 2, '{', '}'})
		}
	}
	f.Fuzz(func(t *testing.T, pid uint32, message string, rest []byte) {
		var body bytes.Buffer
		for _, m := range []string{fmt.Sprintf(`{"start":{"process":{"pid":%d}}}`, pid), message} {
			body.Write(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))))
			body.WriteString(m)
		}
		body.Write(rest)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		req := httptest.NewRequestWithContext(ctx, "POST", "/process.Process/StreamInput", &body)
		req.Header.Set("Content-Type", "application/connect+json")
		req.Header.Set(tokenHeader, testToken)
		w := httptest.NewRecorder()
		r.Handler().ServeHTTP(w, req)
		if ctx.Err() != nil || w.Code != http.StatusOK || !bytes.Contains(w.Body.Bytes(), []byte{2, 0, 0}) {
			t.Errorf("got %d, %q, %v", w.Code, w.Body, ctx.Err())
		}
	})
}
