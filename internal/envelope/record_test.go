package envelope

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

type logPair struct {
	A int
	B string `json:"b"`
}

type logSecret struct{}

func (logSecret) LogValue() slog.Value { return slog.GroupValue(slog.String("hidden", "yes")) }

type logPanics struct{}

func (logPanics) MarshalJSON() ([]byte, error) { panic("no JSON") }
func (logPanics) String() string               { panic("no text") }

func logRecord() slog.Record {
	pc, _, _, _ := runtime.Caller(0)
	r := slog.NewRecord(time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC), slog.LevelWarn+1, "the message\n\xff", pc)
	r.Add("bool", true, "duration", time.Second, "float", math.Inf(-1), "int", -1, "text", "t", "uint", uint64(math.MaxUint64),
		"time", time.Unix(5, 6).In(time.FixedZone("Z", 60)), "nil", nil, "pair", logPair{1, "x"}, "pointer", &logPair{2, "<y>"},
		"bytes", []byte("raw"), "secret", logSecret{}, "panics", logPanics{}, "func", TestMalformed,
		slog.Group("g", "a", 1, slog.Group("h", "b", 2)), slog.Group("", "inline", 3), slog.Group("empty"),
		"err", fmt.Errorf("reading: %w", io.EOF), "typed", &fs.PathError{Op: "open", Path: "p", Err: io.EOF}, "niltyped", (*fs.PathError)(nil),
		"map", map[string]int{"k": 1})
	return r
}

// A record prints as it would have printed where it was made.
func TestRecordPrintsTheSame(t *testing.T) {
	want := logRecord()
	base := reflect.ValueOf(TestMalformed).Pointer()
	got, err := DecodeRecord(EncodeRecord(want, base, testErrors()), base, testErrors())
	if err != nil {
		t.Fatal(err)
	}
	if got.PC != want.PC || got.Level != want.Level || !got.Time.Equal(want.Time) {
		t.Errorf("got %v %v %v, want %v %v %v", got.PC, got.Level, got.Time, want.PC, want.Level, want.Time)
	}
	for name, handler := range map[string]func(io.Writer, *slog.HandlerOptions) slog.Handler{
		"text": func(w io.Writer, o *slog.HandlerOptions) slog.Handler { return slog.NewTextHandler(w, o) },
		"json": func(w io.Writer, o *slog.HandlerOptions) slog.Handler { return slog.NewJSONHandler(w, o) },
	} {
		print := func(r slog.Record) string {
			var b bytes.Buffer
			handler(&b, &slog.HandlerOptions{AddSource: true}).Handle(context.Background(), r)
			return b.String()
		}
		// What panics while it is printed says so in words of its own.
		strip := func(s string) string {
			i := strings.Index(s, "panics")
			return s[:i] + s[i+strings.Index(s[i:], "func"):]
		}
		w, g := print(want), print(got)
		if name == "json" { // functions have no JSON: an error here, text there
			w, g = w[:strings.Index(w, `"panics"`)], g[:strings.Index(g, `"panics"`)]
		} else {
			w, g = strip(w), strip(g)
		}
		if g != w {
			t.Errorf("%s:\ngot  %s\nwant %s", name, g, w)
		}
	}
	got.Attrs(func(a slog.Attr) bool {
		if e, ok := a.Value.Any().(error); ok && a.Key == "typed" && !errors.Is(e, io.EOF) {
			t.Errorf("%v is no io.EOF", e)
		}
		return true
	})
}

func TestRecordIsBounded(t *testing.T) {
	long := strings.Repeat("ü", 1<<20)
	r := slog.NewRecord(time.Now(), slog.LevelInfo, long, 0)
	for range 100 {
		r.Add("k", long, slog.Group("g", "x", long))
	}
	b := EncodeRecord(r, 0, nil)
	if len(b) > MaxRecord {
		t.Errorf("%d bytes", len(b))
	}
	got, err := DecodeRecord(b, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	var last slog.Attr
	n := int64(0)
	got.Attrs(func(a slog.Attr) bool {
		last = a
		n++
		return true
	})
	if last.Key != cutKey || n-1+last.Value.Int64() != 200 || len(got.Message) > maxLogText+3 || !strings.HasSuffix(got.Message, "ü…") {
		t.Errorf("%d attributes, the last %v, message of %d bytes", n, last, len(got.Message))
	}
	deep := slog.Group("g")
	for range 10_000 {
		deep = slog.Group("g", deep)
	}
	r = slog.NewRecord(time.Time{}, 0, "", 0)
	r.AddAttrs(deep)
	if _, err := DecodeRecord(EncodeRecord(r, 0, nil), 0, nil); err != nil {
		t.Error(err)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add(EncodeRecord(logRecord(), 0, testErrors()))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeRecord(b, 1<<40, testErrors())
		if err != nil {
			if errdefs.CodeOf(err) != "E9005" {
				t.Errorf("not coded: %v", err)
			}
			return
		}
		for _, h := range []slog.Handler{slog.NewTextHandler(io.Discard, &slog.HandlerOptions{AddSource: true}), slog.NewJSONHandler(io.Discard, &slog.HandlerOptions{AddSource: true})} {
			h.Handle(context.Background(), r)
		}
	})
}
