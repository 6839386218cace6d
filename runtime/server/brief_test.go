//go:build linux

package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
)

// TestBriefCommand: the answer about a command that ends at once leaves in one
// piece, whose length is known.
func TestBriefCommand(t *testing.T) {
	r := newRig(t, nil)
	msg, err := proto.Marshal(&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/bin/true"}, Stdin: new(bool)})
	if err != nil {
		t.Fatal(err)
	}
	body := append([]byte{0, 0, 0, 0, byte(len(msg))}, msg...)
	for range 200 { // on a busy machine no command ends soon
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://sandbox/process.Process/Start", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/connect+proto")
		req.Header.Set("Connect-Protocol-Version", "1")
		res, err := r.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		all, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || !bytes.Contains(all, []byte("exit status 0")) {
			t.Fatalf("%d %q, %v", res.StatusCode, all, err)
		}
		if res.ContentLength == int64(len(all)) {
			return
		}
	}
	t.Error("the start and the end of a command never came together")
}

// TestBriefOutput: nothing is lost or added, whether a command ends before or
// after its first output was seen.
func TestBriefOutput(t *testing.T) {
	r := newRig(t, nil)
	for i := range 120 {
		n := []int{0, 1, 5000, 60_000, 65_536, 200_000}[i%6]
		script := fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; printf err%d >&2; exit %d", n, i, i%3)
		res, err := r.run(t.Context(), &pb.StartRequest{
			Process: &pb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}}, Stdin: new(bool),
		})
		if err != nil {
			t.Fatal(err)
		}
		if res.pid == 0 || res.stdout != strings.Repeat("x", n) || res.stderr != fmt.Sprint("err", i) || res.end.GetExitCode() != int32(i%3) {
			t.Fatalf("%d: pid %d, %d bytes, %q, %v", i, res.pid, len(res.stdout), res.stderr, res.end)
		}
	}
}

// TestBriefHeir: who has the pipes of a command that ended at once goes on, and
// what it prints is read, but is not output of the command.
func TestBriefHeir(t *testing.T) {
	r := newRig(t, nil)
	mark := t.TempDir() + "/done"
	script, release := held(t, "head -c 200000 /dev/zero && echo late >"+mark)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	res, err := r.run(ctx, &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script + " & exit 4"}}, Stdin: new(bool)})
	if err != nil || res.end.GetExitCode() != 4 || res.stdout != "" {
		t.Fatalf("%+v, %v", res, err)
	}
	release()
	for exec.CommandContext(ctx, "test", "-s", mark).Run() != nil {
		if ctx.Err() != nil {
			t.Fatal("what it left was ended, or waits for a reader")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestBriefStart: the start of a command that goes on, and its first output, are
// told of at once.
func TestBriefStart(t *testing.T) {
	r := newRig(t, nil)
	for _, script := range []string{"exec sleep 600", "echo first; exec sleep 600"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := r.runWith(ctx, &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}}, Stdin: new(bool)},
			func(pid uint32, out string) {
				if pid != 0 && (out == "first\n" || !strings.Contains(script, "first")) {
					r.signal(ctx, pid, pb.Signal_SIGNAL_SIGKILL)
				}
			})
		if err != nil {
			t.Errorf("%s: %v", script, err)
		}
		cancel()
	}
}
