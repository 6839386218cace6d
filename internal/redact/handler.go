package redact

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
)

// Handler returns a handler that hands to h what it gets, without secrets: in
// messages and values as [String] finds them, and whole values below keys that
// say that they are secret. Values that are neither text nor an error are handed
// on as they are unless their text shows a secret. A nil h is nil.
func Handler(h slog.Handler) slog.Handler {
	switch h.(type) {
	case nil:
		return nil
	case *handler:
		return h
	}
	return &handler{h}
}

// Logger returns a logger that writes to l's handler through [Handler]. A nil l
// discards.
func Logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(Handler(l.Handler()))
}

type handler struct{ next slog.Handler }

func (h *handler) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	out := slog.NewRecord(r.Time, r.Level, String(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(attr(a))
		return true
	})
	return h.next.Handle(ctx, out)
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.next.WithAttrs(attrsOf(attrs))}
}

func (h *handler) WithGroup(name string) slog.Handler { return &handler{h.next.WithGroup(name)} }

func attrsOf(attrs []slog.Attr) []slog.Attr {
	out := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		out[i] = attr(a)
	}
	return out
}

func attr(a slog.Attr) slog.Attr {
	v := a.Value.Resolve()
	switch {
	case v.Kind() == slog.KindGroup:
		return slog.Attr{Key: a.Key, Value: slog.GroupValue(attrsOf(v.Group())...)}
	case (v.Kind() == slog.KindString || v.Kind() == slog.KindAny) && isSecretKey(a.Key):
		return slog.String(a.Key, Mask)
	case v.Kind() == slog.KindString:
		return slog.String(a.Key, String(v.String()))
	case v.Kind() == slog.KindAny:
		return slog.Attr{Key: a.Key, Value: anyValue(v)}
	}
	return slog.Attr{Key: a.Key, Value: v}
}

// anyValue keeps a value that shows no secret, so that handlers which know more
// than its text still can use it.
func anyValue(v slog.Value) slog.Value {
	if h, ok := v.Any().(http.Header); ok {
		return slog.AnyValue(Header(h))
	}
	text, ok := textOf(v.Any())
	if !ok {
		return v
	}
	clean := String(text)
	asJSON, _ := json.Marshal(v.Any()) // shows what is behind pointers
	if clean != text || String(string(asJSON)) != string(asJSON) {
		return slog.StringValue(clean)
	}
	return v
}

// textOf is how x prints; false when it can't.
func textOf(x any) (text string, ok bool) {
	defer func() {
		if recover() != nil { // a method of a nil pointer: handlers have their own text for it
			ok = false
		}
	}()
	switch x := x.(type) {
	case nil:
		return "", false
	case []byte:
		return string(x), true
	case error:
		return x.Error(), true
	case fmt.Stringer:
		return x.String(), true
	}
	return fmt.Sprintf("%+v", x), true
}
