package sandboxtest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/sandboxtest"
)

type point struct{ X, Y int }

type lazy struct{}

func (lazy) LogValue() slog.Value { return slog.StringValue("resolved") }

// early is a logger that was made before anything else could be set.
var early = slog.Default()

var chat = declare("chat", func(ctx context.Context, what string) (int, error) {
	switch what {
	case "everything":
		log.Print("plain")
		l := slog.With("with", 1).WithGroup("g")
		l.WarnContext(ctx, "first", "point", point{1, 2}, "err", fmt.Errorf("reading: %w", io.EOF), "lazy", lazy{}, "d", time.Second)
		slog.DebugContext(ctx, "second")
		early.Info("third", slog.Group("h", "a", true))
	case "levels":
		for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
			if slog.Default().Enabled(ctx, l) {
				fmt.Println(l)
			}
			slog.Log(ctx, l, "at "+l.String())
		}
	case "flood":
		const all = 100_000
		begin := time.Now()
		for i := range all {
			slog.InfoContext(ctx, "flood", "i", i)
		}
		return int(time.Since(begin) / time.Millisecond), nil
	case "exit":
		slog.ErrorContext(ctx, "last words")
		os.Exit(3)
	case "panic":
		slog.InfoContext(ctx, "before the panic")
		panic("now")
	case "loop":
		for i := range loopRecords {
			slog.InfoContext(ctx, "one", "i", i)
		}
	case "own":
		slog.SetDefault(slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})))
		slog.Info("mine")
	}
	return 0, nil
})

// captured collects records.
type captured struct {
	mu    sync.Mutex
	level slog.Leveler
	got   []string         // messages
	attrs []map[string]any // of each, as JSON has them
	block chan struct{}    // not nil: each record waits for it
}

func (c *captured) Enabled(_ context.Context, l slog.Level) bool { return l >= c.level.Level() }
func (c *captured) WithAttrs([]slog.Attr) slog.Handler           { panic("not used") }
func (c *captured) WithGroup(string) slog.Handler                { panic("not used") }

func (c *captured) Handle(ctx context.Context, r slog.Record) error {
	if c.block != nil {
		<-c.block
	}
	var b bytes.Buffer
	slog.NewJSONHandler(&b, &slog.HandlerOptions{Level: slog.Level(-100), AddSource: true}).Handle(ctx, r)
	m := map[string]any{}
	json.Unmarshal(b.Bytes(), &m)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got, c.attrs = append(c.got, r.Message), append(c.attrs, m)
	return nil
}

// captureLogs makes a handler the default one for the test.
func captureLogs(t *testing.T, level slog.Leveler) *captured {
	c := &captured{level: level}
	old, flags, w := slog.Default(), log.Flags(), log.Writer()
	slog.SetDefault(slog.New(c))
	t.Cleanup(func() {
		slog.SetDefault(old)
		log.SetFlags(flags)
		log.SetOutput(w)
	})
	return c
}

func TestLogRecords(t *testing.T) {
	ctx := sandboxtest.Process(t)
	c := captureLogs(t, slog.LevelDebug)
	var stderr bytes.Buffer
	f := chat.With(sandboxfn.Options{Stderr: &stderr})
	begin := time.Now().Round(0)
	if _, err := f.Call(ctx, "everything"); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(c.got, " "); got != "first second third" {
		t.Fatalf("records %q when the call has returned", got)
	}
	if !strings.HasSuffix(stderr.String(), " plain\n") {
		t.Errorf("package log: %q", &stderr)
	}
	a := c.attrs[0]
	if at, err := time.Parse(time.RFC3339Nano, a["time"].(string)); err != nil || at.Before(begin) || at.After(time.Now()) {
		t.Errorf("time %v", a["time"])
	}
	src, _ := a["source"].(map[string]any)
	if src == nil || !strings.HasSuffix(fmt.Sprint(src["file"]), "log_test.go") {
		t.Errorf("source %v", a["source"])
	}
	id := fmt.Sprint(a["call_id"])
	delete(a, "time")
	delete(a, "source")
	want := map[string]any{
		"level": "WARN", "msg": "first", "with": 1.0, "function": self + ".chat", "call_id": id,
		"g": map[string]any{"point": map[string]any{"X": 1.0, "Y": 2.0}, "err": "reading: EOF", "lazy": "resolved", "d": 1e9},
	}
	if fmt.Sprint(a) != fmt.Sprint(want) || len(id) < 8 {
		t.Errorf("got  %v\nwant %v", a, want)
	}
	// The only call in its worker has what is logged without its context, too.
	if c.attrs[2]["call_id"] != id || fmt.Sprint(c.attrs[2]["h"]) != "map[a:true]" {
		t.Errorf("third: %v", c.attrs[2])
	}
	if f.Call(ctx, "everything"); c.attrs[3]["call_id"] == id {
		t.Error("two calls have one id")
	}
}

func TestLogLevels(t *testing.T) {
	ctx := sandboxtest.Process(t)
	for _, x := range []struct {
		level slog.Level
		opts  sandboxfn.Options
		want  string
	}{
		{level: slog.LevelDebug, want: "DEBUG INFO WARN ERROR"},
		{level: slog.LevelInfo, want: "INFO WARN ERROR"},
		{level: slog.LevelInfo - 1, want: "INFO WARN ERROR"},
		{level: slog.LevelInfo + 1, want: "WARN ERROR"},
		{level: slog.LevelError, want: "ERROR"},
		{level: 1000, want: ""},
		{level: slog.LevelDebug, opts: sandboxfn.Options{Log: sandboxfn.LogDiscard}, want: ""},
	} {
		c := captureLogs(t, x.level)
		var stdout bytes.Buffer
		x.opts.Stdout = &stdout
		if _, err := chat.With(x.opts).Call(ctx, "levels"); err != nil {
			t.Fatal(err)
		}
		// The function knows what nobody wants to hear.
		enabled := strings.Join(strings.Fields(stdout.String()), " ")
		if got := strings.ReplaceAll(strings.Join(c.got, " "), "at ", ""); got != x.want || enabled != x.want && x.opts.Log == "" {
			t.Errorf("%v %v: records %q, enabled %q, want %q", x.level, x.opts.Log, got, enabled, x.want)
		}
	}
}

// A handler that is stuck holds up neither the function nor the call for long,
// and what is lost is counted.
func TestLogFlood(t *testing.T) {
	ctx := sandboxtest.Process(t)
	c := captureLogs(t, slog.LevelInfo)
	c.block = make(chan struct{})
	done := make(chan int, 1)
	go func() {
		ms, err := chat.Call(ctx, "flood")
		if err != nil {
			t.Error(err)
		}
		done <- ms
	}()
	select {
	case ms := <-done:
		t.Logf("logging took %d ms", ms)
	case <-time.After(30 * time.Second):
		t.Fatal("the call waits for a stuck handler")
	}
	close(c.block)
	for _, what := range []string{"nothing", "levels"} { // the first returns when everything is handled
		if _, err := chat.With(sandboxfn.Options{Stdout: io.Discard}).Call(ctx, what); err != nil {
			t.Fatal(err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	seen, dropped, last := 0, 0.0, ""
	for i, msg := range c.got {
		last = msg
		switch {
		case msg == "flood":
			seen++
		case strings.HasPrefix(msg, "log records dropped"):
			dropped += c.attrs[i]["dropped"].(float64)
		}
	}
	if seen+int(dropped) != 100_000 || seen < 1000 || dropped == 0 {
		t.Errorf("%d records, %v counted as dropped", seen, dropped)
	}
	if last != "at ERROR" {
		t.Errorf("the last record is %q", last)
	}
}

func TestLogBeforeTheEnd(t *testing.T) {
	ctx := sandboxtest.Process(t)
	c := captureLogs(t, slog.LevelInfo)
	if _, err := chat.Call(ctx, "exit"); !errors.Is(err, sandboxfn.ErrWorkerLost) {
		t.Fatal(err)
	}
	if _, err := chat.Call(ctx, "panic"); !errors.Is(err, sandboxfn.ErrPanic) {
		t.Fatal(err)
	}
	if got := strings.Join(c.got, ", "); got != "last words, before the panic" {
		t.Errorf("records: %q", got)
	}
}

// What a program sets itself stays.
func TestLogOwnDefault(t *testing.T) {
	ctx := sandboxtest.Process(t)
	c := captureLogs(t, slog.LevelInfo)
	var stdout bytes.Buffer
	if _, err := chat.With(sandboxfn.Options{Stdout: &stdout}).Call(ctx, "own"); err != nil {
		t.Fatal(err)
	}
	if stdout.String() != "level=INFO msg=mine\n" || len(c.got) > 0 {
		t.Errorf("printed %q, records %q", &stdout, c.got)
	}
}

// loopRecords of four calls at once are fewer than what is dropped when the caller is
// slow.
const loopRecords = 500

// Beside other calls in its worker, a record belongs to a call only by its
// context.
func TestLogConcurrent(t *testing.T) {
	ctx := sandboxtest.Process(t)
	c := captureLogs(t, slog.LevelInfo)
	f := chat.With(sandboxfn.Options{Concurrency: 4, Workers: sandboxfn.Workers{Max: 1}})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := f.Call(ctx, "loop"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	next := map[string]int{}
	for i := range c.got {
		id, n := fmt.Sprint(c.attrs[i]["call_id"]), int(c.attrs[i]["i"].(float64))
		if next[id] != n {
			t.Fatalf("call %s: record %d after %d", id, n, next[id])
		}
		next[id]++
	}
	if len(next) != 4 || len(c.got) != 4*loopRecords {
		t.Errorf("%d records of %d calls", len(c.got), len(next))
	}
	if _, err := f.With(sandboxfn.Options{Stderr: io.Discard}).Call(ctx, "everything"); err != nil {
		t.Fatal(err)
	}
	last := c.attrs[len(c.attrs)-1]
	if last["msg"] != "third" || last["call_id"] != nil || !strings.HasPrefix(fmt.Sprint(last["worker"]), "w") {
		t.Errorf("without the context: %v", last)
	}
}
