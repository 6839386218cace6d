//go:build linux

package server

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
	"github.com/agent-sandbox/sandbox-go/runtime/httpapi"
)

// apiAnswer is what came back of the HTTP API.
type apiAnswer struct {
	status int
	code   string
	header http.Header
	body   string
}

// into reads the body as JSON.
func (a apiAnswer) into(t testing.TB, v any) {
	t.Helper()
	if a.status != http.StatusOK {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	if err := json.Unmarshal([]byte(a.body), v); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
}

// call makes a request of the HTTP API with the token and more headers.
func (r *rig) call(t testing.TB, method, path, body string, headers ...string) apiAnswer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://sandbox"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := r.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return apiAnswer{resp.StatusCode, resp.Header.Get("Sandbox-Error-Code"), resp.Header, string(b)}
}

func TestAPICore(t *testing.T) {
	r := newRig(t, nil)
	var c struct {
		Version           string
		Groups, Endpoints map[string]bool
	}
	r.call(t, "GET", "/capabilities", "").into(t, &c)
	if !c.Groups["core"] || !c.Groups["system"] || !c.Endpoints["core.health"] || !c.Endpoints["system.info"] {
		t.Errorf("got %+v", c)
	}
	for _, row := range Endpoints() {
		if on := c.Endpoints[row.Name]; on == row.Off {
			t.Errorf("%s: on is %v, off by default is %v", row.Name, on, row.Off)
		}
	}
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]any
	}
	r.call(t, "GET", "/openapi.json", "").into(t, &doc)
	if doc.OpenAPI != "3.1.0" || doc.Paths["/system/info"]["get"] == nil || doc.Paths["/health"] == nil {
		t.Errorf("got %+v", doc)
	}
}

func TestAPIUnknown(t *testing.T) {
	r := newRig(t, nil)
	for _, c := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"GET", "/none", 404, ""},
		{"GET", "/", 404, ""},
		{"GET", "/capabilities/", 404, ""},
		{"POST", "/capabilities", 405, "GET"},
		{"PUT", "/system/info", 405, "GET"},
	} {
		a := r.call(t, c.method, c.path, "")
		if a.status != c.status || a.header.Get("Allow") != c.allow {
			t.Errorf("%s %s: got %+v", c.method, c.path, a)
		}
	}
}

// TestAPITokens: our routes take the token in two headers, and in a subprotocol
// where a WebSocket is asked for.
func TestAPITokens(t *testing.T) {
	r := newRig(t, nil)
	plain := &http.Client{Transport: r.http.Transport.(withToken).next}
	for _, c := range []struct {
		name    string
		headers []string
		status  int
	}{
		{"none", nil, 401},
		{"bearer", []string{"Authorization", "Bearer " + testToken}, 200},
		{"bearer, small", []string{"Authorization", "bearer " + testToken}, 200},
		{"ours", []string{"X-Sandbox-Token", testToken}, 200},
		{"basic", []string{"Authorization", "Basic " + testToken}, 401},
		{"wrong", []string{"Authorization", "Bearer " + testToken + "x"}, 401},
		{"empty", []string{"Authorization", "Bearer "}, 401},
		{"subprotocol without upgrade", []string{"Sec-Websocket-Protocol", "sandbox-token." + testToken}, 401},
	} {
		req, err := http.NewRequest("GET", "http://sandbox/capabilities", nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(c.headers); i += 2 {
			req.Header.Set(c.headers[i], c.headers[i+1])
		}
		resp, err := plain.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%s: status %d, want %d", c.name, resp.StatusCode, c.status)
		}
	}
}

// off refuses endpoints by name.
type off map[string]bool

func (o off) Endpoint(name string) error {
	if o[name] {
		return http.ErrNotSupported
	}
	return nil
}

// TestAPIGate: an endpoint that is off looks like a path that is not there, but
// for the code.
func TestAPIGate(t *testing.T) {
	done := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }
	rows := []endpoint.Endpoint{
		{Name: "a.on", Method: "GET", Path: "/x", Handle: done},
		{Name: "a.off", Method: "POST", Path: "/x", Handle: done},
		{Name: "a.gone", Method: "GET", Path: "/y/{id}", Handle: done},
	}
	h := endpoint.Router(rows, off{"a.off": true, "a.gone": true}, nil)
	for _, c := range []struct {
		method, path string
		status       int
		code, allow  string
	}{
		{"GET", "/x", 418, "", ""}, {"POST", "/x", 404, "E8022", ""}, {"PUT", "/x", 405, "E3006", "GET"},
		{"GET", "/y/1", 404, "E8022", ""}, {"POST", "/y/1", 404, "E8022", ""}, {"GET", "/z", 404, "", ""},
	} {
		a := serve(t, h, c.method, c.path)
		if a.status != c.status || a.code != c.code || a.header.Get("Allow") != c.allow {
			t.Errorf("%s %s: got %+v", c.method, c.path, a)
		}
		if c.status == 404 && a.body != "404 page not found\n" {
			t.Errorf("%s %s: body %s", c.method, c.path, a.body)
		}
	}
}

func TestAPISystem(t *testing.T) {
	r := newRig(t, func(o *Options) {
		o.Usage = func() Usage {
			return Usage{CPUs: 1.5, CPUPercent: 12.345, MemoryUsed: 256 << 20, MemoryTotal: 1 << 30, DiskUsed: 1 << 30, DiskTotal: 4 << 30}
		}
	})
	var info map[string]any
	r.call(t, "GET", "/system/info", "").into(t, &info)
	if info["cpu_count"] != 2.0 || info["memory_total_mb"] != 1024.0 || info["memory_available_mb"] != 768.0 || info["disk_free_gb"] != 3.0 || info["os"] != "linux" {
		t.Errorf("got %v", info)
	}
	var m map[string]any
	r.call(t, "GET", "/system/metrics", "").into(t, &m)
	if m["memory_percent"] != 25.0 || m["disk_percent"] != 25.0 || m["cpu_percent"] != 12.35 || m["uptime_seconds"].(float64) <= 0 {
		t.Errorf("got %v", m)
	}
}

// serve has h answer one request.
func serve(t testing.TB, h http.Handler, method, path string) apiAnswer {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), method, path, nil))
	return apiAnswer{rec.Code, rec.Header().Get("Sandbox-Error-Code"), rec.Header(), rec.Body.String()}
}

// known are the endpoints of the Python server that this API stands in for.
var known = strings.Fields(`
GET/health GET/capabilities GET/commands POST/commands/{name}
POST/upload GET/download POST/files/upload-stream GET/files/download-stream GET/files/list GET/files/stat POST/files/mkdir
DELETE/files POST/files/move POST/files/search POST/files/archive
POST/shell POST/shell/stream POST/process/start GET/process/list GET/process/{pid} POST/process/{pid}/signal
POST/pty/sessions GET/pty/sessions DELETE/pty/sessions/{id} GET/pty
GET/system/info GET/system/metrics GET/env POST/env GET/ports GET/packages POST/code/run GET/git/status GET/git/diff
POST/browser/navigate POST/browser/screenshot GET/browser/content POST/browser/click POST/browser/type POST/browser/evaluate
POST/browser/pdf GET/browser/console`)

// TestAPIComplete: what the Python server had is there, or the docs say why not;
// the table, the OpenAPI document and the docs have the same endpoints.
func TestAPIComplete(t *testing.T) {
	doc, err := os.ReadFile("../../docs/http-api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, absent, ok := strings.Cut(string(doc), "\n### Absent\n")
	if !ok {
		t.Fatal("docs/http-api.md has no section Absent")
	}
	body, err := json.Marshal(httpapi.OpenAPI(Endpoints()))
	if err != nil {
		t.Fatal(err)
	}
	var api struct {
		Paths map[string]map[string]struct{ OperationID string }
	}
	if err := json.Unmarshal(body, &api); err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{"GET/health": true}
	for _, row := range Endpoints() {
		path := regexp.MustCompile(`\{([a-z_]+):[^}]*\}`).ReplaceAllString(row.Path, "{$1}")
		rows[row.Method+path] = true
		if row.Handle == nil || row.Summary == "" || !strings.Contains(row.Name, ".") || !strings.HasSuffix(row.Summary, ".") && !strings.HasSuffix(row.Summary, "below.") {
			t.Errorf("row %+v", row)
		}
		if got := api.Paths[path][strings.ToLower(row.Method)].OperationID; !strings.HasPrefix(got, row.Name) {
			t.Errorf("the document has %q for %s %s", got, row.Method, path)
		}
		if !strings.Contains(string(doc), "`"+row.Method+" "+path+"`") {
			t.Errorf("docs/http-api.md has no %s %s", row.Method, path)
		}
	}
	ids := map[string]bool{}
	for path, item := range api.Paths {
		for method, op := range item {
			if ids[op.OperationID] {
				t.Errorf("two endpoints are called %s in the document", op.OperationID)
			}
			ids[op.OperationID] = true
			if !rows[strings.ToUpper(method)+path] {
				t.Errorf("the document has %s %s", method, path)
			}
		}
	}
	for _, k := range known {
		method, path, _ := strings.Cut(k, "/")
		if missing := strings.Contains(absent, "`"+method+" /"+path+"`"); rows[k] == missing {
			t.Errorf("%s: served %v, listed as absent %v", k, rows[k], missing)
		}
	}
}
