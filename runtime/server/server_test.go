//go:build linux

package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	fspb "github.com/agent-sandbox/sandbox-go/internal/pb/filesystem"
	"github.com/agent-sandbox/sandbox-go/internal/pb/filesystem/filesystemconnect"
	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/internal/pb/process/processconnect"
)

// rig is a server on a unix socket with clients for it.
type rig struct {
	*Server
	socket  string
	http    *http.Client
	process processconnect.ProcessClient
	files   filesystemconnect.FilesystemClient
}

const testToken = "token-of-the-test"

// newRig starts a server and ends it with the test.
func newRig(t testing.TB, change func(*Options)) *rig {
	t.Helper()
	o := &Options{Token: testToken, DefaultWorkDir: t.TempDir()}
	if change != nil {
		change(o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "rt") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return serveRig(t, s, filepath.Join(dir, "s"))
}

// serveRig serves s until the end of the test.
func serveRig(t testing.TB, s *Server, socket string) *rig {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	r := &rig{Server: s, socket: socket, http: &http.Client{Transport: withToken{transport}}}
	r.process = processconnect.NewProcessClient(r.http, "http://sandbox")
	r.files = filesystemconnect.NewFilesystemClient(r.http, "http://sandbox")
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return r
}

type withToken struct{ next http.RoundTripper }

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	own := *r // of which a transport may keep nothing but the header for itself
	own.Header = r.Header.Clone()
	own.Header.Set(tokenHeader, testToken)
	return w.next.RoundTrip(&own)
}

// result is what a Start stream brought.
type result struct {
	pid             uint32
	stdout, stderr  string
	pty             string
	keepalives      int
	end             *pb.ProcessEvent_EndEvent
	header, trailer http.Header
}

// run starts a command and follows it to its end.
func (r *rig) run(ctx context.Context, msg *pb.StartRequest, headers ...string) (*result, error) {
	return r.runWith(ctx, msg, nil, headers...)
}

// runWith calls on with the pid, and the standard output so far, after each event.
func (r *rig) runWith(ctx context.Context, msg *pb.StartRequest, on func(pid uint32, out string), headers ...string) (*result, error) {
	req := connect.NewRequest(msg)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header().Set(headers[i], headers[i+1])
	}
	stream, err := r.process.Start(ctx, req)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	res := &result{}
	for stream.Receive() {
		res.add(stream.Msg().GetEvent())
		if on != nil {
			on(res.pid, res.stdout+res.pty)
		}
	}
	res.trailer = stream.ResponseTrailer()
	if err := stream.Err(); err != nil {
		return res, err
	}
	if res.end == nil {
		return res, errors.New("stream ended without an end event")
	}
	return res, nil
}

func (res *result) add(e *pb.ProcessEvent) {
	switch e := e.GetEvent().(type) {
	case *pb.ProcessEvent_Start:
		res.pid = e.Start.GetPid()
	case *pb.ProcessEvent_Data:
		res.stdout += string(e.Data.GetStdout())
		res.stderr += string(e.Data.GetStderr())
		res.pty += string(e.Data.GetPty())
	case *pb.ProcessEvent_Keepalive:
		res.keepalives++
	case *pb.ProcessEvent_End:
		res.end = e.End
	}
}

// connect follows the process with this number to its end.
func (r *rig) connect(ctx context.Context, pid uint32) (*result, error) {
	stream, err := r.process.Connect(ctx, connect.NewRequest(&pb.ConnectRequest{Process: byPid(pid)}))
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	res := &result{}
	for stream.Receive() {
		res.add(stream.Msg().GetEvent())
	}
	res.header, res.trailer = stream.ResponseHeader(), stream.ResponseTrailer()
	return res, stream.Err()
}

func (r *rig) signal(ctx context.Context, pid uint32, sig pb.Signal) error {
	_, err := r.process.SendSignal(ctx, connect.NewRequest(&pb.SendSignalRequest{Process: byPid(pid), Signal: sig}))
	return err
}

func byPid(pid uint32) *pb.ProcessSelector {
	return &pb.ProcessSelector{Selector: &pb.ProcessSelector_Pid{Pid: pid}}
}

func sh(script string) *pb.StartRequest {
	return &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}}}
}

func TestCommandAndFiles(t *testing.T) {
	r := newRig(t, nil)
	res, err := r.run(t.Context(), sh("echo out; echo err >&2; exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	if res.stdout != "out\n" || res.stderr != "err\n" || res.end.GetExitCode() != 3 || res.pid == 0 {
		t.Errorf("got %+v", res)
	}

	dir := r.opts.DefaultWorkDir
	resp, err := r.http.Post("http://sandbox/files?path="+dir+"/a/b.txt", "application/octet-stream", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	list, err := r.files.ListDir(t.Context(), connect.NewRequest(&fspb.ListDirRequest{Path: dir, Depth: 2}))
	if err != nil {
		t.Fatal(err)
	}
	if got := len(list.Msg.GetEntries()); got != 2 {
		t.Errorf("got %d entries, want 2: %v", got, list.Msg)
	}
}

func TestClosedByDefault(t *testing.T) {
	if _, err := New(nil); err == nil {
		t.Error("New without a token: got no error")
	}
	s, err := New(&Options{AllowNoToken: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// held is a subshell that runs script once it is released.
func held(t testing.TB, script string) (subshell string, release func()) {
	t.Helper()
	fifo := filepath.Join(t.TempDir(), "go")
	if err := unix.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	return "(read x <" + fifo + "; " + script + ")", func() {
		t.Helper()
		f, err := os.OpenFile(fifo, os.O_RDWR, 0) // it waits for nobody
		if err == nil {
			t.Cleanup(func() { f.Close() })
			_, err = f.WriteString("go\n")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
