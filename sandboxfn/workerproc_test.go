package sandboxfn

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/artifact"
	"github.com/agent-sandbox/sandbox-go/providers"
)

// echoWorker sends back what comes over its channel, after printing something.
func echoWorker(script string) workerSpec {
	return workerSpec{Path: "/bin/sh", Args: []string{"-c", script}}
}

func TestWorker(t *testing.T) {
	onEach(t, func(t *testing.T, sb *Sandbox) {
		ctx := t.Context()
		t.Run("frames and output", func(t *testing.T) {
			var mu sync.Mutex
			var stdout, stderr bytes.Buffer
			spec := echoWorker(`echo "$A"; echo err >&2; cat <&3 >&3; exit 5`)
			spec.Env = map[string]string{"A": "out"}
			spec.Stdout = func(b []byte) { mu.Lock(); defer mu.Unlock(); stdout.Write(b) }
			spec.Stderr = func(b []byte) { mu.Lock(); defer mu.Unlock(); stderr.Write(b) }
			w, err := sb.startWorker(ctx, spec)
			must(t, err)
			defer w.close()
			data := bytes.Repeat([]byte("frame "), 100_000)
			go w.conn.Write(data)
			got := make([]byte, len(data))
			if _, err := io.ReadFull(w.conn, got); err != nil || !bytes.Equal(got, data) {
				t.Fatalf("echo: %v", err)
			}
			wctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			must(t, w.waitDelivered(wctx, 4, 4))
			if so, se := w.delivered(); so != 4 || se != 4 {
				t.Errorf("delivered %d and %d", so, se)
			}
			mu.Lock()
			if stdout.String() != "out\n" || stderr.String() != "err\n" {
				t.Errorf("got %q and %q", stdout.String(), stderr.String())
			}
			mu.Unlock()
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			if err := w.waitDelivered(short, 5, 0); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("waited for what never comes: %v", err)
			}
			must(t, w.conn.(interface{ CloseWrite() error }).CloseWrite())
			<-w.done()
			if x := w.exit(); x.Code != 5 || x.Signal != "" || x.Err != nil || x.OOM {
				t.Errorf("got %+v", x)
			}
		})
		t.Run("the end of the connection reaches the worker", func(t *testing.T) {
			w, err := sb.startWorker(ctx, echoWorker("cat <&3 >/dev/null; exit 3"))
			must(t, err)
			w.conn.Close()
			<-w.done()
			if x := w.exit(); x.Code != 3 {
				t.Errorf("got %+v", x)
			}
			w.close()
			w.close()
		})
		t.Run("kill", func(t *testing.T) {
			w, err := sb.startWorker(ctx, echoWorker("sleep 100 & wait"))
			must(t, err)
			defer w.close()
			must(t, w.kill(ctx))
			<-w.done()
			if x := w.exit(); x.Code != -1 || x.Signal != "killed" {
				t.Errorf("got %+v", x)
			}
			must(t, w.kill(ctx))
		})
		t.Run("not there", func(t *testing.T) {
			if _, err := sb.startWorker(ctx, workerSpec{Path: "/no/such/worker"}); !errors.Is(err, ErrCommandNotFound) {
				t.Errorf("got %v", err)
			}
		})
		t.Run("given up", func(t *testing.T) {
			w, err := sb.startWorker(ctx, echoWorker("cat <&3"))
			must(t, err)
			w.close()
			<-w.done()
			if x := w.exit(); x.Err == nil {
				t.Errorf("got %+v", x)
			}
		})
		t.Run("cancelled", func(t *testing.T) {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			if _, err := sb.startWorker(ctx, echoWorker("true")); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		})
		t.Run("closed sandbox", func(t *testing.T) {
			w, err := sb.startWorker(ctx, echoWorker("cat <&3"))
			must(t, err)
			must(t, sb.Close())
			select {
			case <-w.done():
			case <-time.After(patience):
				t.Fatal("the worker has not ended")
			}
			if _, err := w.conn.Read(make([]byte, 1)); err == nil {
				t.Error("the connection is open")
			}
			if _, err := sb.startWorker(ctx, echoWorker("true")); !errors.Is(err, ErrKilled) {
				t.Errorf("got %v", err)
			}
		})
	})
}

// The program reaches the sandbox, once, and runs there.
func TestEnsureArtifact(t *testing.T) {
	self, err := artifact.Own()
	must(t, err)
	t.Run("upload", func(t *testing.T) {
		sb := localSandbox(t)
		path, err := sb.ensureArtifact(t.Context(), self, "")
		must(t, err)
		if out, err := sb.Command(t.Context(), path, "-test.list", "TestEnsureArtifact").Output(); err != nil || !strings.Contains(string(out), "TestEnsureArtifact") {
			t.Errorf("got %q, %v", out, err)
		}
		before, err := sb.FS(t.Context()).Stat(path)
		must(t, err)
		again, err := sb.ensureArtifact(t.Context(), self, "")
		if again != path || err != nil {
			t.Errorf("again: %q, %v", again, err)
		}
		if after, err := sb.FS(t.Context()).Stat(path); err != nil || !after.ModTime().Equal(before.ModTime()) {
			t.Errorf("it was uploaded again: %v, %v, %v", before, after, err)
		}
		wrong := self
		wrong.Digest = strings.Repeat("0", 64)
		if _, err := sb.ensureArtifact(t.Context(), wrong, ""); CodeOf(err) != "E9010" {
			t.Errorf("wrong digest: %v", err)
		}
		list, err := sb.FS(t.Context()).ReadDir(".cache/sandbox-worker")
		if len(list) != 1 || err != nil {
			t.Errorf("left: %v, %v", list, err)
		}
	})
	t.Run("shared by the provider", func(t *testing.T) {
		c := localSandbox(t).client
		sb, err := c.createForPool(t.Context(), nil, poolNeeds{artifacts: []providers.Artifact{{Digest: self.Digest, Path: self.Path}}})
		must(t, err)
		defer sb.Close()
		path, err := sb.ensureArtifact(t.Context(), self, "")
		must(t, err)
		if strings.Contains(path, ".cache") {
			t.Errorf("it was uploaded to %s", path)
		}
		if out, err := sb.Command(t.Context(), path, "-test.list", "TestEnsureArtifact").Output(); err != nil || !strings.Contains(string(out), "TestEnsureArtifact") {
			t.Errorf("got %q, %v", out, err)
		}
	})
}
