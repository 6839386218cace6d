package endpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"

	"github.com/agent-sandbox/sandbox-go/internal/near"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

// MaxBody bounds the JSON body of a request, in bytes.
const MaxBody = 10 << 20

// Decode reads the JSON object in the body of r into v, at most [MaxBody] bytes.
// A request without a body is an empty object. Keys that v does not have are
// refused, with the one that they are most like. When it reports false, it has answered.
// V is of a type that does not hold itself.
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
		// The decoder has no other way to say so.
		if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
			return unknownKey(name, v)
		}
		return err
	}
	if rest := body[d.InputOffset():]; len(bytes.TrimSpace(rest)) > 0 {
		return errors.New("something follows it")
	}
	return nil
}

// maxKey bounds the keys that an error repeats, in bytes.
const maxKey = 200

// unknownKey is the error of a key that v does not have; quoted is how JSON writes it.
func unknownKey(quoted string, v any) error {
	if len(quoted) > maxKey {
		return fmt.Errorf("there is no key of %d bytes", len(quoted))
	}
	text := "there is no key " + quoted
	var name string
	if json.Unmarshal([]byte(quoted), &name) != nil {
		return errors.New(text)
	}
	if n := near.Best(name, keys(reflect.TypeOf(v), nil)); n != "" {
		text += fmt.Sprintf("; did you mean %q?", n)
	}
	return errors.New(text)
}

// keys adds the keys of t, and of what it holds, to names.
func keys(t reflect.Type, names []string) []string {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return keys(t.Elem(), names)
	case reflect.Struct:
		for f := range t.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name != "" && name != "-" {
				names = append(names, name)
			}
			names = keys(f.Type, names)
		}
	}
	return names
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
