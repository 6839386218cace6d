package api

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// A service of ours names the code of what it says about sandboxes; what it says
// stands in the text once.
func TestCodeOfTheService(t *testing.T) {
	for _, c := range []struct {
		status int
		code   string
		body   string
		want   string
	}{
		{409, "E2024", `{"code":409,"message":"sandbox x is paused already"}`, "E2024 pause sandbox: sandbox x is paused already"},
		{429, "E2002", `{"code":429,"message":"this gateway keeps at most 3 sandboxes"}`, "E2002 pause sandbox: this gateway keeps at most 3 sandboxes"},
		{404, "E2021", `{"code":404,"message":"sandbox expired"}`, "E2021 pause sandbox: sandbox expired"},
		{409, "E9999", `{"code":409,"message":"m"}`, ""},
		{409, "E1001", `{"code":409,"message":"m"}`, ""},
		{409, "E8000", `{"code":409,"message":"m"}`, ""},
		{409, "E2024", `{"code":409}`, ""},
		{502, "E2024", `<html>sandbox x is paused</html>`, "E8011"},
	} {
		cl, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(codeHeader, c.code)
			answering(c.status, c.body)(w, r)
		}, func(o *Options) { o.Retries = NoRetries })
		err := cl.Pause(t.Context(), "abc")
		if c.want == "" {
			c.want = "E8000 pause sandbox: " + cl.Address() + " says"
		}
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(c.want, "paused already") && err.Error() != c.want {
			t.Errorf("%d %s: %v, want %q", c.status, c.code, err, c.want)
		}
		if Status(err) != c.status {
			t.Errorf("%d %s: status %d", c.status, c.code, Status(err))
		}
	}
}

// One that is gone cannot be killed, whatever the service says of its end.
func TestKillOfWhatEnded(t *testing.T) {
	for _, code := range []string{"E2020", "E2021", "E2022", "E2023"} {
		cl, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(codeHeader, code)
			answering(404, `{"code":404,"message":"gone"}`)(w, r)
		}, nil)
		if err := cl.Kill(t.Context(), "abc"); errdefs.CodeOf(err) != "E2020" {
			t.Errorf("%s: %v", code, err)
		}
	}
}

// An address that does not have the routes is named, and nothing is said of
// templates and sandboxes.
func TestNoSuchRoute(t *testing.T) {
	cl, _ := serve(t, answering(404, `{"code":404,"message":"no such route"}`), nil)
	for name, call := range ops {
		err := call(t.Context(), cl)
		if errdefs.CodeOf(err) != "E8000" || !strings.Contains(err.Error(), cl.Address()+" does not know ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for status, call := range map[int]string{500: "get", 418: "list", 409: "pause"} {
		cl, _ := serve(t, answering(status, fmt.Sprintf(`{"code":%d,"message":"m"}`, status)), func(o *Options) { o.Retries = NoRetries })
		if err := ops[call](t.Context(), cl); errdefs.CodeOf(err) != "E8000" || !strings.Contains(err.Error(), cl.Address()) {
			t.Errorf("%d: %v", status, err)
		}
	}
}

func TestCertificateIsNotTrusted(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.NotFoundHandler())
	srv.Config.ErrorLog = log.New(t.Output(), "", 0)
	srv.StartTLS()
	defer srv.Close()
	cl, err := New(&Options{URL: srv.URL, Key: testKey, Retries: NoRetries})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	err = ops["get"](t.Context(), cl)
	e, ok := errors.AsType[*errdefs.Error](err)
	if !ok || e.Code != "E5001" || !Undone(err) || !strings.Contains(e.Message, "the certificate of "+srv.URL+" is not trusted") || e.Hint() != CertHint {
		t.Errorf("%v", err)
	}
}
