package drivers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// Event is one thing that a cell tells, in the order in which clients see it.
type Event struct {
	Type      string // as on the wire: stdout, stderr, result, error, …
	Count     int    // of number_of_executions
	Text      string // of stdout and stderr
	Time      time.Time
	Result    map[string]any // fields of a result
	Name      string         // of an error, like the next two
	Value     string
	Traceback string
	Late      bool // an error that says that the time of the cell was over; not on the wire
}

// The types of events.
const (
	Count     = "number_of_executions"
	Stdout    = "stdout"
	Stderr    = "stderr"
	Result    = "result"
	Error     = "error"
	Keepalive = "keepalive"
	End       = "end_of_execution"
	Restarted = "context_restarted" // only for clients that ask for it
)

// Line is the event as a line of JSON. It is ASCII: a client may decode each
// piece that the network delivers for itself.
func (e *Event) Line() []byte {
	m := map[string]any{"type": e.Type}
	switch e.Type {
	case Count:
		m["execution_count"] = e.Count
	case Stdout, Stderr:
		m["text"] = e.Text
		m["timestamp"] = e.Time.UnixNano()
	case Result:
		for k, v := range e.Result {
			m[k] = v
		}
	case Error:
		m["name"], m["value"], m["traceback"] = e.Name, e.Value, e.Traceback
	}
	return append(ascii(encode(m)), '\n')
}

func encode(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // maps of text, numbers and checked JSON always encode
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// ascii escapes what is not ASCII in JSON.
func ascii(p []byte) []byte {
	first := bytes.IndexFunc(p, func(r rune) bool { return r >= utf8.RuneSelf })
	if first < 0 {
		return p
	}
	out := append(make([]byte, 0, len(p)+len(p)/2), p[:first]...)
	for _, r := range string(p[first:]) {
		switch {
		case r < utf8.RuneSelf:
			out = append(out, byte(r))
		case r > 0xffff:
			a, b := utf16.EncodeRune(r)
			out = fmt.Appendf(out, "\\u%04x\\u%04x", a, b)
		default:
			out = fmt.Appendf(out, "\\u%04x", r)
		}
	}
	return out
}

// fields are the names of results by MIME type; others are under "extra".
var fields = map[string]string{
	"text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg",
	"image/png": "png", "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex",
	"application/json": "json", "application/javascript": "javascript", "e2b/data": "data", "e2b/chart": "chart",
}

// result makes the event of a result. Forms above the limit are left out, and
// extra says so.
func result(data map[string]json.RawMessage, main bool) Event {
	m := map[string]any{"is_main_result": main}
	extra := map[string]any{}
	var dropped []string
	for mime, raw := range data {
		if len(raw) > MaxResult {
			dropped = append(dropped, fmt.Sprintf("%s: %d bytes, above the limit of %d", mime, len(raw), MaxResult))
			continue
		}
		name, ok := fields[mime]
		switch {
		case !ok:
			extra[mime] = raw
		case name == "text":
			var text string
			if json.Unmarshal(raw, &text) != nil {
				text = string(raw)
			}
			m[name] = unquoted(text)
		default:
			m[name] = raw
		}
	}
	if dropped != nil {
		extra["dropped"] = dropped
	}
	if len(extra) > 0 {
		m["extra"] = extra
	}
	return Event{Type: Result, Result: m}
}

// unquoted removes the quotes around a text.
func unquoted(s string) string {
	if n := len(s); n >= 2 && (s[0] == '\'' || s[0] == '"') && s[n-1] == s[0] {
		return s[1 : n-1]
	}
	return s
}

// Failure is the event of an error; without a traceback it is made up of the other
// two.
func Failure(name, value string, traceback ...string) Event {
	if len(traceback) == 0 {
		traceback = []string{name + ": " + value}
	}
	return Event{Type: Error, Name: name, Value: value, Traceback: strings.Join(traceback, "\n")}
}
