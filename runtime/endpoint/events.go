package endpoint

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"
)

// stall is how long a client may take nothing of what an event stream has for
// it before it counts as gone.
const stall = 5 * time.Minute

// EventStream is the media type of server-sent events.
const EventStream = "text/event-stream"

// Events is a stream of server-sent events, the answer of one request. It is
// for one goroutine.
type Events struct {
	w       http.ResponseWriter
	control *http.ResponseController
	buf     bytes.Buffer
}

// NewEvents begins the answer.
func NewEvents(w http.ResponseWriter) *Events {
	h := w.Header()
	h.Set("Content-Type", EventStream)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Accel-Buffering", "no") // proxies pass on what there is
	return &Events{w: w, control: http.NewResponseController(w)}
}

// Send sends an event with v as JSON. An empty id is none. An error means that
// the client is gone. Send panics when v cannot be written as JSON.
func (e *Events) Send(name, id string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	e.buf.Reset()
	if id != "" {
		e.buf.WriteString("id: " + id + "\n")
	}
	e.buf.WriteString("event: " + name + "\ndata: ")
	e.buf.Write(data) // one line: JSON has no line ends in it
	e.buf.WriteString("\n\n")
	return e.flush()
}

// Beat sends a comment, so that what lies between sees that the stream lives.
func (e *Events) Beat() error {
	e.buf.Reset()
	e.buf.WriteString(": alive\n\n")
	return e.flush()
}

func (e *Events) flush() error {
	// Not every writer has deadlines; without one the connection decides.
	_ = e.control.SetWriteDeadline(time.Now().Add(stall))
	if _, err := e.w.Write(e.buf.Bytes()); err != nil {
		return err
	}
	err := e.control.Flush()
	_ = e.control.SetWriteDeadline(time.Time{})
	return err
}
