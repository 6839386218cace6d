//go:build linux

package command

import (
	"encoding/json"
	"net/http"
	"unicode/utf8"
)

const eventStream = "text/event-stream"

// events is the sink of a stream of server-sent events.
type events struct {
	w       http.ResponseWriter
	begun   bool
	partial [2][]byte // of stdout and stderr: the beginning of a character
}

// chunk is the data of an event with output, as in the streams of processes.
type chunk struct {
	Data   string `json:"data"`
	Base64 []byte `json:"data_base64,omitempty"` // the bytes, where they are not UTF-8
}

func (s *events) begin() {
	if s.begun {
		return
	}
	s.begun = true
	h := s.w.Header()
	h.Set("Content-Type", eventStream)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Accel-Buffering", "no") // proxies that would collect the stream
	s.w.WriteHeader(http.StatusOK)
}

func (s *events) send(event string, v any) error {
	s.begin()
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.write("event: " + event + "\ndata: " + string(body) + "\n\n")
}

func (s *events) write(text string) error {
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return http.NewResponseController(s.w).Flush()
}

func (s *events) started(pid int) error { return s.send("start", map[string]int{"pid": pid}) }

func (s *events) output(stdout, stderr []byte) error {
	if err := s.part(0, "stdout", stdout, false); err != nil {
		return err
	}
	return s.part(1, "stderr", stderr, false)
}

// part sends output, but keeps what begins a character for the next part.
func (s *events) part(i int, event string, b []byte, last bool) error {
	if b = append(s.partial[i], b...); len(b) == 0 {
		return nil
	}
	s.partial[i] = nil
	if !last {
		n := begun(b)
		s.partial[i] = append([]byte(nil), b[len(b)-n:]...)
		b = b[:len(b)-n]
	}
	if len(b) == 0 {
		return nil
	}
	text, raw := printed(b)
	return s.send(event, chunk{*text, raw})
}

// begun is how many bytes at the end of b are a character that is not complete.
func begun(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		tail := b[len(b)-n:]
		if utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return n
			}
			return 0
		}
	}
	return 0
}

func (s *events) alive() error {
	s.begin()
	return s.write(": alive\n\n")
}

func (s *events) result(v json.RawMessage) error {
	return s.send("result", map[string]json.RawMessage{"result": v})
}

func (s *events) ended(e Exit) error {
	if err := s.part(0, "stdout", nil, true); err != nil {
		return err
	}
	if err := s.part(1, "stderr", nil, true); err != nil {
		return err
	}
	return s.send("exit", e)
}

func (s *events) finish(http.ResponseWriter) error { return nil }

func (s *events) fail(w http.ResponseWriter, err error) {
	if !s.begun {
		refuse(w, err)
		return
	}
	status, code, text := explain(err)
	// The client may be gone; there is nobody to tell.
	_ = s.send("error", map[string]any{"status": status, "code": code, "error": text})
}
