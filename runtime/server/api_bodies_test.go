//go:build linux

package server

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// TestAPIBodies asks every endpoint that takes a JSON object with keys of its own: one
// that is not known is refused with the one that is meant, and so is a body that is
// too large. The routes of E2B's code interpreter leave such keys alone.
func TestAPIBodies(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Template = &model.Template{Server: &model.Server{Enable: []string{"*"}}} })
	variable := regexp.MustCompile(`\{[^}]*\}`)
	asked := 0
	for _, row := range Endpoints() {
		typ := reflect.TypeOf(row.Request)
		if typ == nil || typ.Kind() != reflect.Struct {
			continue
		}
		asked++
		t.Run(row.Name, func(t *testing.T) {
			field := typ.Field(0)
			for field.Anonymous {
				field = field.Type.Field(0)
			}
			key, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			path := variable.ReplaceAllString(row.Path, "1")
			a := r.call(t, row.Method, path, `{"`+key+`_":1}`)
			if want := `there is no key \"` + key + `_\"; did you mean \"` + key + `\"?`; a.status != 400 || a.code != "E3006" || !strings.Contains(a.body, want) {
				t.Errorf("got %d %s %s, want %s", a.status, a.code, a.body, want)
			}
			for _, body := range []string{`[]`, `{} {}`, `{} }`, `{} ]`, `{}x`} {
				if a := r.call(t, row.Method, path, body); a.status != 400 || a.code != "E3006" {
					t.Errorf("%s: got %d %s %s", body, a.status, a.code, a.body)
				}
			}
			if a := r.call(t, row.Method, path, `{"`+strings.Repeat("k", 1<<20)+`":1}`); a.status != 400 || a.code != "E3006" || len(a.body) > 1<<10 {
				t.Errorf("a long key: got %d %s %.200s", a.status, a.code, a.body)
			}
			limit := 10 << 20
			if row.Path == "/upload" {
				limit = 24 << 20 // of base64
			}
			if a := r.call(t, row.Method, path, `{"`+key+`":"`+strings.Repeat("a", limit)+`"}`); a.status != 413 || a.code != "E3006" {
				t.Errorf("a large body: got %d %s %.200s", a.status, a.code, a.body)
			}
		})
	}
	if asked < 12 {
		t.Errorf("only %d endpoints", asked)
	}

	needBash(t)
	large := strings.Repeat("#", 11<<20)
	a := r.call(t, "POST", "/execute", `{"language":"bash","code":"echo ran","newer_key":"`+large+`"}`, "E2b-Sandbox-Port", "49999")
	if a.status != 200 || !strings.Contains(a.body, `"ran\n"`) {
		t.Errorf("E2B's route: got %d %.200s", a.status, a.body)
	}
}
