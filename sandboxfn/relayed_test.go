package sandboxfn

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// mark is how a shell in the place of a relay begins its records.
const mark = `printf '%s\n' "$SANDBOX_WORKER_MARK" >&2; printf '%s\n' "$SANDBOX_WORKER_MARK"; `

// relayedWorker starts a script as a relay.
func relayedWorker(t *testing.T, sb *Sandbox, script string) (w *workerProc, stdout, stderr *bytes.Buffer) {
	t.Helper()
	var mu sync.Mutex
	to := func(b *bytes.Buffer) func([]byte) {
		return func(p []byte) {
			mu.Lock()
			defer mu.Unlock()
			b.Write(p)
		}
	}
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	w, err := sb.startWorker(t.Context(), workerSpec{
		Path: "/bin/sh", Args: []string{"-c", script}, Env: map[string]string{worker.EnvConn: "3", worker.EnvCounters: "4"},
		Stdout: to(stdout), Stderr: to(stderr),
	})
	must(t, err)
	return w, stdout, stderr
}

func waitEnd(t *testing.T, w *workerProc) workerExit {
	t.Helper()
	select {
	case <-w.done():
	case <-time.After(20 * time.Second):
		t.Fatal("the worker has not ended")
	}
	return w.exit()
}

func TestRelayed(t *testing.T) {
	sb := create(t, hostClient(t, &hostProvider{}, nil), nil)
	sb.noChannels.Store(true)

	t.Run("carries", func(t *testing.T) {
		w, stdout, stderr := relayedWorker(t, sb, `test "$SANDBOX_WORKER_FD$SANDBOX_WORKER_COUNTER_FD" = stdio || exit 9
			printf 'printed twice'; printf 'twice, too' >&2; `+mark+`
			printf '\001\000\000\004'; head -c 4
			printf '\002\000\000\002hi'; printf '\003\000\000\003err'; cat >/dev/null; exit 3`)
		if _, err := w.conn.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4)
		if _, err := io.ReadFull(w.conn, got); err != nil || string(got) != "ping" {
			t.Errorf("%q, %v", got, err)
		}
		must(t, w.waitDelivered(t.Context(), 2, 3))
		w.close()
		if x := waitEnd(t, w); x.Code != 3 || x.Err != nil {
			t.Errorf("ended with %+v", x)
		}
		if stdout.String() != "hi" || stderr.String() != "err" {
			t.Errorf("printed %q and %q", stdout, stderr)
		}
	})
	t.Run("never begins", func(t *testing.T) {
		w, stdout, stderr := relayedWorker(t, sb, `printf 'some text'; echo no library >&2; exit 127`)
		if _, err := w.conn.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("got %v", err)
		}
		if x := waitEnd(t, w); x.Code != 127 || x.Err != nil {
			t.Errorf("ended with %+v", x)
		}
		if stdout.String() != "some text" || stderr.String() != "no library\n" {
			t.Errorf("printed %q and %q", stdout, stderr)
		}
		w.close()
	})
	t.Run("says something else", func(t *testing.T) {
		w, _, _ := relayedWorker(t, sb, mark+`echo hello; sleep 100`)
		if x := waitEnd(t, w); CodeOf(x.Err) != "E9005" {
			t.Errorf("ended with %+v", x)
		}
		if _, err := w.conn.Read(make([]byte, 1)); CodeOf(err) != "E9005" {
			t.Errorf("got %v", err)
		}
		w.close()
	})
	t.Run("takes nothing", func(t *testing.T) {
		w, _, _ := relayedWorker(t, sb, mark+`exec sleep 100`)
		w.conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		if _, err := w.conn.Write(make([]byte, 4*streamBuffer)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		begin := time.Now()
		w.close()
		if x := waitEnd(t, w); x.Signal != "killed" || time.Since(begin) > 15*time.Second {
			t.Errorf("ended with %+v after %v", x, time.Since(begin))
		}
	})
	t.Run("killed", func(t *testing.T) {
		w, _, _ := relayedWorker(t, sb, mark+`exec sleep 100`)
		must(t, w.kill(t.Context()))
		if x := waitEnd(t, w); x.Signal != "killed" {
			t.Errorf("ended with %+v", x)
		}
		w.close()
	})
	t.Run("caller is lost", func(t *testing.T) {
		w, _, _ := relayedWorker(t, sb, mark+`exec sleep 100`)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		ended := sb.Attach(ctx, w.pid())
		must(t, ended.Start())
		// As when the program is gone: nobody asks for an end any more.
		w.relayed.cancel = func() {}
		w.stream.Close(errors.New("lost"))
		if err := ended.Wait(); err == nil || ctx.Err() != nil {
			t.Errorf("the relay lives on: %v", err)
		}
		waitEnd(t, w)
		w.close()
	})
	t.Run("sends more than a request holds", func(t *testing.T) {
		sb.limits.RequestBytes = 10 << 10
		defer func() { sb.limits.RequestBytes = 0 }()
		data := bytes.Repeat([]byte("0123456789abcdef"), 1<<14)
		w, _, _ := relayedWorker(t, sb, mark+`printf '\001\003\000\000'; head -c 196608; printf '\001\001\000\000'; head -c 65536; cat >/dev/null`)
		go w.conn.Write(data)
		got := make([]byte, len(data))
		if _, err := io.ReadFull(w.conn, got); err != nil || !bytes.Equal(got, data) {
			t.Errorf("other bytes than were sent, %v", err)
		}
		w.close()
		waitEnd(t, w)
	})
	t.Run("sandbox closed", func(t *testing.T) {
		sb := create(t, hostClient(t, &hostProvider{}, nil), nil)
		sb.noChannels.Store(true)
		w, _, _ := relayedWorker(t, sb, mark+`exec sleep 100`)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		go func() {
			defer cancel()
			if err := sb.Close(); err != nil {
				t.Error(err)
			}
		}()
		waitEnd(t, w)
		<-ctx.Done()
		if _, err := w.conn.Read(make([]byte, 1)); err == nil {
			t.Error("the connection goes on")
		}
	})
}
