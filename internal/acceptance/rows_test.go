package acceptance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/sandbox-go/internal/acceptance/rows"
	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

// TestHowCallsGo checks the options that say how a call goes.
func TestHowCallsGo(t *testing.T) {
	sbtest.NeedSandbox(t)
	ctx := t.Context()
	want := rows.Sum{Name: "a\n", Parts: []float64{0.1, -0.5}, Raw: []byte{0, 255}}
	if got, err := rows.EchoJSON(ctx, want); err != nil || cmp.Diff(want, got) != "" {
		t.Errorf("codec=json: %+v, %v", got, err)
	}
	if _, err := rows.EchoJSON(ctx, rows.Sum{Raw: make([]byte, 1<<17)}); !errors.Is(err, sandboxfn.ErrPayloadTooLarge) {
		t.Errorf("max_payload: %v", err)
	}
	if n, err := rows.Flaky(ctx, 4); n != 4 || err != nil {
		t.Errorf("retries=3: %d, %v", n, err)
	}
	if n, err := rows.Flaky(ctx, 100); !errors.Is(err, rows.ErrRow) || n != 8 {
		t.Errorf("retries at their end: %d, %v", n, err)
	}
	begin := time.Now()
	if err := rows.Rest(ctx, time.Minute); !errors.Is(err, sandboxfn.ErrTimeout) || time.Since(begin) > 30*time.Second {
		t.Errorf("timeout: %v after %v", err, time.Since(begin))
	}
}

func TestLogModes(t *testing.T) {
	sbtest.NeedSandbox(t)
	var records bytes.Buffer
	var mu sync.Mutex
	old := slog.Default()
	defer slog.SetDefault(old)
	slog.SetDefault(slog.New(slog.NewTextHandler(writer(func(b []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return records.Write(b)
	}), nil)))
	if err := rows.Speak(t.Context(), "loud"); err != nil {
		t.Error(err)
	}
	if err := rows.Whisper(t.Context(), "quiet"); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	got := records.String()
	if !strings.Contains(got, "msg=loud") || !strings.Contains(got, "msg=spoken text=loud") || strings.Contains(got, "quiet") {
		t.Errorf("records:\n%s", got)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

func TestNestedModes(t *testing.T) {
	sbtest.NeedSandbox(t)
	outer, in, err := rows.ThroughCaller(t.Context())
	if err != nil || outer == in || in == "" {
		t.Errorf("nested=caller: %s in %s, %v", in, outer, err)
	}
	outer, in, err = rows.InPlace(t.Context())
	if err != nil || outer != in || in == "" {
		t.Errorf("nested=local: %s in %s, %v", in, outer, err)
	}
	if err := rows.Alone(t.Context()); err == nil || !strings.Contains(err.Error(), "E9016") {
		t.Errorf("nested=refuse: %v", err)
	}
}

// TestDuringCalls checks what goes on between a function and its caller.
func TestDuringCalls(t *testing.T) {
	sbtest.NeedSandbox(t)
	ctx := t.Context()
	say := func(_ context.Context, n int) (string, error) {
		if n == 13 {
			return "", rows.ErrRow
		}
		return fmt.Sprint("n", n), nil
	}
	var got []string
	var last error
	for s, err := range rows.Count(ctx, 20, say) {
		if last = err; err == nil {
			got = append(got, s)
		}
	}
	if len(got) != 13 || got[12] != "n12" || last != rows.ErrRow {
		t.Errorf("stream with callbacks: %v, %v", got, last)
	}
	for range rows.Count(ctx, 1<<40, func(context.Context, int) (string, error) { return "", nil }) {
		break
	}
	var to bytes.Buffer
	if n, err := rows.Upper(ctx, strings.NewReader("loud"), &to); n != 4 || err != nil || to.String() != "LOUD" {
		t.Errorf("reader and writer: %d, %v, %q", n, err, to.String())
	}
	if _, err := rows.Upper(ctx, iotest.ErrReader(rows.ErrRow), &to); err != rows.ErrRow {
		t.Errorf("error of a reader: %v", err)
	}
	words := func(yield func(string, error) bool) { _ = yield("a", nil) && yield("b", nil) && yield("", rows.ErrRow) }
	if s, err := rows.Join(ctx, words); s != "a b" || err != rows.ErrRow {
		t.Errorf("sequence: %q, %v", s, err)
	}
	r, err := rows.Open(ctx, "/etc/hostname")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(r); string(b) != "sandbox\n" || err != nil || r.Close() != nil {
		t.Errorf("reader as a result: %q, %v", b, err)
	}
	if _, err := rows.Open(ctx, "/nothing"); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("reader that is none: %v", err)
	}
}

func TestBatches(t *testing.T) {
	sbtest.NeedSandbox(t)
	got, err := rows.DoubleFunc.Collect(t.Context(), []int{1, 2, 3, 4, 5})
	if err != nil || !slices.Equal(got, []int{2, 4, 6, 8, 10}) {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := rows.Wrong(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "E9007") {
		t.Errorf("too few results: %v", err)
	}
}
