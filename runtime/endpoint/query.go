package endpoint

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Bool is a parameter of the query: true, yes, 1, or the opposite. A request
// without it means false. When ok is false, Bool has answered.
func Bool(w http.ResponseWriter, r *http.Request, name string) (v, ok bool) {
	switch text := r.URL.Query().Get(name); strings.ToLower(text) {
	case "true", "yes", "1":
		return true, true
	case "", "false", "no", "0":
		return false, true
	default:
		Refuse(w, "%s is %q, not true or false", name, text)
		return false, false
	}
}

// Int is a parameter of the query from 1 to most; a request without it means def.
// When ok is false, Int has answered.
func Int(w http.ResponseWriter, r *http.Request, name string, def, most int) (v int, ok bool) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return def, true
	}
	v, err := strconv.Atoi(text)
	if err != nil || v < 1 || v > most {
		Refuse(w, "%s is %q, not a number from 1 to %d", name, text, most)
		return 0, false
	}
	return v, true
}

// Patient is a writer of the answer that gives up on a client which takes
// nothing for a minute.
type Patient struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

// NewPatient returns a writer. Done has to be called at the end.
func NewPatient(w http.ResponseWriter) *Patient {
	return &Patient{w, http.NewResponseController(w)}
}

func (p *Patient) Write(b []byte) (int, error) {
	// Not every writer has deadlines; without one the connection decides.
	_ = p.control.SetWriteDeadline(time.Now().Add(time.Minute))
	return p.w.Write(b)
}

// Done lifts the limit for what comes next on the connection.
func (p *Patient) Done() { _ = p.control.SetWriteDeadline(time.Time{}) }
