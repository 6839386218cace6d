package endpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

// MaxBody bounds the JSON body of a request, in bytes.
const MaxBody = 10 << 20

// Decode reads the JSON object in the body of r into v, at most [MaxBody] bytes.
// A request without a body is an empty object. Keys that v does not have are
// refused. When it reports false, it has answered.
func Decode(w http.ResponseWriter, r *http.Request, v any) bool {
	return DecodeMax(w, r, v, MaxBody)
}

// DecodeMax is [Decode] with another limit.
func DecodeMax(w http.ResponseWriter, r *http.Request, v any, limit int64) bool {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		fault.HTTP(w, http.StatusRequestEntityTooLarge, "E3006", fmt.Sprintf("the body is larger than %d bytes", limit))
		return false
	}
	if err != nil {
		fault.HTTP(w, http.StatusBadRequest, "E3006", "the body cannot be read: "+err.Error())
		return false
	}
	if err := decode(bytes.TrimSpace(body), v); err != nil {
		fault.HTTP(w, http.StatusBadRequest, "E3006", "the body is not the JSON object that is expected: "+err.Error())
		return false
	}
	return true
}

func decode(body []byte, v any) error {
	if len(body) == 0 {
		return nil
	}
	if body[0] != '{' {
		return errors.New("it begins with " + string([]rune(string(body[:min(len(body), 4)]))[:1]))
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if d.More() {
		return errors.New("something follows it")
	}
	return nil
}

// Answer answers 200 with v as JSON. It panics when v cannot be written as JSON.
func Answer(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", "no-store")
	}
	// The client may be gone; there is nobody to tell.
	_, _ = w.Write(append(body, '\n'))
}

// Refuse answers 400 with why a request is malformed.
func Refuse(w http.ResponseWriter, format string, args ...any) {
	fault.HTTP(w, http.StatusBadRequest, "E3011", fmt.Sprintf(format, args...))
}
