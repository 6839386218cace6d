package envd

import (
	"bufio"
	"context"
	"io"
	"strings"
	"testing"
	"time"
)

// FuzzNamedEvents: whatever a server sends, a stream of events ends, and only an end
// that was stated counts as one.
func FuzzNamedEvents(f *testing.F) {
	for _, s := range []string{
		"event: start\ndata: {\"pid\":1}\n\nevent: stdout\ndata: {\"data\":\"x\"}\n\nevent: exit\ndata: {\"exit_code\":0}\n\n",
		"event: result\r\ndata: {\"result\":null}\r\n\r\n", ": alive\n\n\n\nevent: error\ndata: {\"code\":\"E3001\",\"error\":\"late\"}\n\n",
		"data: {}\n\n", "event: exit\ndata: {}\n\n", "event: exit", "event:exit\ndata:{\ndata:\"exit_code\":1}\n\n", "event: stderr\ndata: {\"data_base64\":\"_\"}\n\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ctx, cancel := context.WithCancelCause(t.Context())
		s := &NamedStream{op: "test", ctx: ctx, cancel: cancel, body: io.NopCloser(strings.NewReader("")), alarm: time.NewTimer(time.Hour)}
		s.lines = bufio.NewReader(strings.NewReader(text))
		defer s.Close()
		for n := 0; ; n++ {
			ev, err := s.Next()
			if err != nil {
				return
			}
			if n > len(text) {
				t.Fatal("it does not end")
			}
			switch {
			case ev.End != nil && !strings.Contains(text, "exit"), ev.Result != nil && !strings.Contains(text, "result"):
				t.Fatalf("%+v from nothing", ev)
			case ev.End != nil || ev.Result != nil:
				return
			}
		}
	})
}
