package gateway

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/internal/version"
)

func TestLifecycle(t *testing.T) {
	f := startLocal(t, Options{})
	before := time.Now()
	var sb api.Sandbox
	f.want(f.do("POST", "/v2/sandboxes", map[string]any{
		"templateID": "base", "metadata": map[string]string{"a b": "c&d"}, "envVars": map[string]string{"FOO": "bar"},
	}), 201).decode(t, &sb)
	if !validID(sb.SandboxID) || sb.TemplateID != "base" || sb.ClientID == "" || sb.EnvdVersion != version.Envd || sb.EnvdAccessToken == "" {
		t.Fatalf("%+v", sb)
	}
	if got := f.run(sb, "echo $FOO $E2B_SANDBOX $E2B_SANDBOX_ID"); got != "bar true "+sb.SandboxID+"\n" {
		t.Errorf("environment: %q", got)
	}
	var d api.SandboxDetail
	f.want(f.do("GET", "/sandboxes/"+sb.SandboxID, nil), 200).decode(t, &d)
	if d.State != "running" || d.Metadata["a b"] != "c&d" || len(d.Metadata) != 1 || d.EnvdAccessToken != sb.EnvdAccessToken ||
		d.CPUCount < 1 || d.MemoryMB < 128 || d.Lifecycle.OnTimeout != "kill" || d.AllowInternetAccess == nil || *d.AllowInternetAccess {
		t.Errorf("%+v", d)
	}
	if left := d.EndAt.Sub(before); left < 299*time.Second || left > 310*time.Second {
		t.Errorf("v2 without a timeout ends in %v", left)
	}
	// An id with more behind a dash is cut there.
	f.want(f.do("GET", "/sandboxes/"+sb.SandboxID+"-local", nil), 200)

	end := func() time.Duration {
		var d api.SandboxDetail
		f.want(f.do("GET", "/sandboxes/"+sb.SandboxID, nil), 200).decode(t, &d)
		return time.Until(d.EndAt).Round(10 * time.Second)
	}
	step := func(method, path string, body any, status int, want time.Duration) {
		t.Helper()
		f.want(f.do(method, "/sandboxes/"+sb.SandboxID+path, body), status)
		if got := end(); got != want {
			t.Errorf("%s %v: the end is in %v, want %v", path, body, got, want)
		}
	}
	sec := func(n int) map[string]int { return map[string]int{"timeout": n} }
	step("POST", "/timeout", sec(600), 204, 600*time.Second)
	step("POST", "/timeout", sec(100), 204, 100*time.Second) // may shorten
	step("POST", "/timeout", sec(100_000_000), 204, 24*time.Hour)
	step("POST", "/timeout", sec(200), 204, 200*time.Second)
	step("POST", "/timeout", sec(-1), 400, 200*time.Second)
	step("POST", "/timeout", "{", 400, 200*time.Second)
	step("POST", "/timeout", `{"timeout":"5"}`, 400, 200*time.Second)
	step("POST", "/refreshes", nil, 204, 200*time.Second) // only lengthens
	step("POST", "/refreshes", map[string]int{"duration": 400}, 204, 400*time.Second)
	step("POST", "/refreshes", map[string]int{"duration": 3601}, 400, 400*time.Second)
	step("POST", "/connect", sec(100), 200, 400*time.Second) // never shortens
	step("POST", "/connect", sec(500), 200, 500*time.Second)
	step("POST", "/connect", map[string]int{}, 400, 500*time.Second) // required in v1
	step("POST", "/connect", sec(100_000), 400, 500*time.Second)
	r := f.want(f.do("POST", "/v2/sandboxes/"+sb.SandboxID+"/connect", nil), 200)
	if r.field(t, "envdAccessToken") != sb.EnvdAccessToken {
		t.Errorf("connect answers %s", r.body)
	}
	f.want(f.do("POST", "/sandboxes/"+sb.SandboxID+"/resume", nil), 409)

	r = f.want(f.do("DELETE", "/sandboxes/"+sb.SandboxID, nil), 204)
	if len(r.body) > 0 {
		t.Errorf("204 with a body")
	}
	f.want(f.do("DELETE", "/sandboxes/"+sb.SandboxID, nil), 404)
	f.want(f.do("GET", "/sandboxes/"+sb.SandboxID, nil), 404)
	f.want(f.do("POST", "/sandboxes/"+sb.SandboxID+"/timeout", sec(5)), 404)
	f.want(f.do("POST", "/sandboxes/"+sb.SandboxID+"/connect", sec(5)), 404)
	f.want(f.do("POST", "/sandboxes/"+sb.SandboxID+"/pause", nil), 404)
	f.want(f.data(sb, envdPort, "GET", "/health", nil), 502)
}

func TestEndOfTime(t *testing.T) {
	f := startLocal(t, Options{MaxLifetime: 2 * time.Hour})
	// v1 without a timeout: 15 seconds. It is always secured.
	var sb api.Sandbox
	f.want(f.do("POST", "/sandboxes", map[string]any{"templateID": "base", "secure": false, "allow_internet_access": true}), 201).decode(t, &sb)
	var d api.SandboxDetail
	f.want(f.do("GET", "/sandboxes/"+sb.SandboxID, nil), 200).decode(t, &d)
	if left := time.Until(d.EndAt); left > 15*time.Second || left < 5*time.Second || sb.EnvdAccessToken == "" {
		t.Errorf("%v left, %+v", left, sb)
	}
	f.want(f.do("POST", "/sandboxes/"+sb.SandboxID+"/timeout", map[string]int{"timeout": 1}), 204)
	eventually(t, "the sandbox ends at its time", func() bool {
		f.s.mu.Lock()
		defer f.s.mu.Unlock()
		return len(f.s.boxes) == 0
	})
	f.want(f.do("GET", "/sandboxes/"+sb.SandboxID, nil), 404)
	logs := string(f.want(f.do("GET", "/v2/sandboxes/"+sb.SandboxID+"/logs", nil), 200).body)
	if !strings.Contains(logs, "reached the end of its time") {
		t.Errorf("logs: %s", logs)
	}
	// Zero ends it now.
	sb = f.create(nil)
	f.want(f.do("POST", "/sandboxes/"+sb.SandboxID+"/timeout", map[string]int{"timeout": 0}), 204)
	f.want(f.do("GET", "/sandboxes/"+sb.SandboxID, nil), 404)

	r := f.want(f.do("POST", "/v2/sandboxes", map[string]any{"templateID": "base", "timeout": 7201}), 400)
	if !strings.Contains(string(r.body), "Timeout cannot be greater than 2 hours") {
		t.Errorf("%s", r.body)
	}
}

func TestRefusedCreations(t *testing.T) {
	f := startLocal(t, Options{MaxSandboxes: 1})
	for _, c := range []struct {
		body   string
		status int
	}{
		{`{}`, 201}, // the default template
		{`{"templateID":"base:default"}`, 201},
		{`{"templateID":"base","network":null,"iam":null,"mcp":null,"volumeMounts":[],"autoResume":{"enabled":false}}`, 201},
		{`{"templateID":"base","network":{"denyOut":["0.0.0.0/0"],"allowPublicTraffic":true}}`, 201},
		{``, 400},
		{`[]`, 400},
		{`{"templateID":5}`, 400},
		{`{"templateID":"other"}`, 404},
		{`{"templateID":"base:v2"}`, 404},
		{`{"templateID":"../base"}`, 404},
		{`{"templateID":"base","timeout":0}`, 400},
		{`{"templateID":"base","timeout":-5}`, 400},
		{`{"templateID":"base","timeout":1.5}`, 400},
		{`{"templateID":"base","timeout":99999999999999999999}`, 400},
		{`{"templateID":"base","timeout":86401}`, 400},
		{`{"templateID":"base","metadata":{"a":1}}`, 400},
		{`{"templateID":"base","metadata":{"a":"` + strings.Repeat("x", maxMetadata) + `"}}`, 400},
		{`{"templateID":"base","envVars":{"a=b":"c"}}`, 400},
		{`{"templateID":"base","iam":{"tokens":{"a":{}}}}`, 400},
		{`{"templateID":"base","mcp":{"github":{}}}`, 400},
		{`{"templateID":"base","volumeMounts":[{"name":"a","path":"/b"}]}`, 400},
		{`{"templateID":"base","autoResume":{"enabled":true}}`, 400},
		{`{"templateID":"base","autoPause":true,"autoPauseMemory":false}`, 400},
		{`{"templateID":"base","network":{"allowOut":["1.1.1.1"]}}`, 400},
		{`{"templateID":"base","network":{"denyOut":["1.1.1.1"]}}`, 400},
		{`{"templateID":"base","network":{"allowOut":["a.example"],"denyOut":["0.0.0.0/0"]}}`, 400},
		{`{"templateID":"base","network":{"egressProxy":{"address":"a:1"}}}`, 400},
		{`{"templateID":"base","network":{"rules":{"a":[]}}}`, 400},
		{`{"templateID":"base","network":{"maskRequestHost":"a b"}}`, 400},
	} {
		r := f.do("POST", "/v2/sandboxes", c.body)
		f.want(r, c.status)
		if c.status == 201 {
			// One more is too many.
			f.want(f.do("POST", "/sandboxes", `{"templateID":"base"}`), 429)
			f.want(f.do("DELETE", "/sandboxes/"+r.field(t, "sandboxID").(string), nil), 204)
		}
	}
	if n := len(f.s.all()); n != 0 {
		t.Errorf("%d sandboxes were made by refused requests", n)
	}
	f.want(f.do("POST", "/v2/sandboxes", strings.NewReader(`{"templateID":"`+strings.Repeat("x", maxControlBody)+`"}`)), 413)
}

func TestKeysOfRequests(t *testing.T) {
	f := startLocal(t, Options{})
	sb := f.create(nil)
	other, err := f.s.Keys().Create("other")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		headers []string
		status  int
	}{
		{"none", nil, 401},
		{"empty", []string{"X-API-Key", " "}, 401},
		{"wrong", []string{"X-API-Key", "e2b_" + strings.Repeat("0", 40)}, 401},
		{"right", []string{"X-API-Key", f.key}, 200},
		{"lower case", []string{"x-api-key", f.key}, 200},
		{"blanks around", []string{"X-API-Key", "  " + f.key + " "}, 200},
		{"prefix", []string{"X-API-Key", f.key[:43]}, 401},
		{"bearer", []string{"Authorization", "Bearer " + f.key}, 200},
		{"bearer in lower case", []string{"Authorization", "bearer " + f.key}, 200},
		{"basic", []string{"Authorization", "Basic " + f.key}, 401},
		{"token of the sandbox", []string{"X-API-Key", sb.EnvdAccessToken}, 401},
		{"header of the sandbox", []string{"X-Access-Token", sb.EnvdAccessToken}, 401},
		{"of somebody else", []string{"X-API-Key", other.Secret}, 404},
	} {
		r, err := f.try("GET", "/sandboxes/"+sb.SandboxID, nil, c.headers...)
		if err != nil {
			t.Fatal(err)
		}
		if r.StatusCode != c.status {
			t.Errorf("%s: %d, want %d: %s", c.name, r.StatusCode, c.status, r.body)
		}
		if strings.Contains(string(r.body), f.key) {
			t.Errorf("%s: the answer holds the key", c.name)
		}
	}
	// To another key the sandbox does not exist, whatever it tries.
	for _, try := range []string{
		"GET /sandboxes/ID", "DELETE /sandboxes/ID", "POST /sandboxes/ID/pause", "POST /sandboxes/ID/resume", "GET /sandboxes/ID/logs",
		"GET /v2/sandboxes/ID/logs", "GET /sandboxes/ID/metrics", "POST /sandboxes/ID/fork", "POST /sandboxes/ID/snapshots",
		"PUT /sandboxes/ID/network", "POST /v2/sandboxes/ID/connect", "POST /sandboxes/ID/refreshes",
	} {
		method, path, _ := strings.Cut(strings.ReplaceAll(try, "ID", sb.SandboxID), " ")
		r, err := f.try(method, path, nil, "X-API-Key", other.Secret)
		if err != nil {
			t.Fatal(err)
		}
		f.want(r, 404)
	}
	for _, path := range []string{"/sandboxes", "/v2/sandboxes"} {
		r, err := f.try("GET", path, nil, "X-API-Key", other.Secret)
		if err != nil || strings.TrimSpace(string(r.body)) != "[]" {
			t.Errorf("%s shows %s to another key", path, r.body)
		}
	}
	r, err := f.try("GET", "/sandboxes/metrics?sandbox_ids="+sb.SandboxID, nil, "X-API-Key", other.Secret)
	if err != nil || strings.Contains(string(r.body), sb.SandboxID) {
		t.Errorf("metrics of another key: %s", r.body)
	}
	// A revoked key is refused from the next request on.
	if err := f.s.Keys().Revoke("test"); err != nil {
		t.Fatal(err)
	}
	f.want(f.do("GET", "/v2/sandboxes", nil), 401)
}

func TestRoutesThatAreNot(t *testing.T) {
	f := start(t, t.TempDir(), Options{Provider: newFake()})
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/", 404},
		{"GET", "/nope", 404},
		{"GET", "/sandboxes/", 404},
		{"PUT", "/sandboxes", 405},
		{"GET", "/sandboxes/abc/pause", 405},
		{"GET", "/sandboxes/ABC", 400},
		{"GET", "/sandboxes/a_b", 400},
		{"GET", "/sandboxes/-abc", 400},
		{"GET", "/sandboxes/a%2fb", 400},
		{"GET", "/sandboxes/..%2f..%2fetc", 400},
		{"GET", "/sandboxes/%00", 400},
		{"GET", "/sandboxes/" + strings.Repeat("a", 65), 400},
		{"GET", "//sandboxes", 404},
		{"GET", "/./sandboxes", 404},
		{"GET", "/x/../sandboxes", 404},
		{"GET", "/sandboxes/abc", 404},
		{"POST", "/v3/templates", 501},
		{"POST", "/templates", 501},
		{"POST", "/templates/tags", 501},
		{"DELETE", "/templates/tags", 501},
		{"PATCH", "/v2/templates/base", 501},
		{"GET", "/templates/base", 501},
		{"GET", "/templates/nope", 404},
		{"DELETE", "/templates/base", 403},
		{"DELETE", "/templates/somesnapshot", 404},
		{"GET", "/templates/aliases/nope", 404},
		{"GET", "/templates/aliases/team%2Fnope", 404},
		{"GET", "/volumes/x", 404},
		{"POST", "/volumes", 501},
		{"GET", "/teams", 501},
		{"POST", "/sandboxes/abc/fork", 404},
	} {
		f.want(f.do(c.method, c.path, nil), c.status)
	}
	for _, path := range []string{"/snapshots", "/templates", "/v2/templates", "/volumes", "/sandboxes", "/v2/sandboxes"} {
		if r := f.want(f.do("GET", path, nil), 200); strings.TrimSpace(string(r.body)) != "[]" {
			t.Errorf("%s: %s", path, r.body)
		}
	}
	r := f.want(f.do("GET", "/templates/aliases/base", nil), 200)
	if r.field(t, "templateID") != "base" || r.field(t, "public") != true {
		t.Errorf("%s", r.body)
	}
	h, err := f.try("GET", "/health", nil)
	if err != nil || h.StatusCode != 200 {
		t.Errorf("%v %v", h, err)
	}
	// Without a key there is nothing to learn, not even which routes there are.
	for _, path := range []string{"/nope", "/sandboxes", "/sandboxes/abc", "/health/", "/templates/aliases/base"} {
		r, err := f.try("GET", path, nil)
		if err != nil {
			t.Fatal(err)
		}
		f.want(r, 401)
	}
}

func TestNotSupportedOfASandbox(t *testing.T) {
	f := start(t, t.TempDir(), Options{Provider: newFake()})
	sb := f.create(nil)
	for _, c := range []string{"POST /fork", "POST /snapshots", "PUT /network"} {
		method, path, _ := strings.Cut(c, " ")
		r := f.want(f.do(method, "/sandboxes/"+sb.SandboxID+path, "{}"), 501)
		if r.field(t, "error_code") != "not_supported" || r.Header.Get(codeHeader) != "E8004" {
			t.Errorf("%s: %s", c, r.body)
		}
	}
	f.want(f.do("POST", "/sandboxes/"+sb.SandboxID+"/pause", `{"memory":false}`), 400)
}

// The same request under the same identity makes one sandbox.
func TestRepeatedCreation(t *testing.T) {
	f := startLocal(t, Options{})
	make := func(body string, id string) *reply {
		return f.do("POST", "/v2/sandboxes", body, requestHeader, id)
	}
	a := f.want(make(`{"templateID":"base","metadata":{"a":"1"}}`, "one"), 201)
	b := f.want(make(`{"templateID":"base","metadata":{"a":"1"}}`, "one"), 201)
	if a.field(t, "sandboxID") != b.field(t, "sandboxID") || len(f.s.all()) != 1 {
		t.Errorf("%s and %s", a.body, b.body)
	}
	f.want(make(`{"templateID":"base","metadata":{"a":"2"}}`, "one"), 400)
	f.want(make(`{"templateID":"base","metadata":{"a":"1"},"timeout":60}`, "one"), 400)
	// Another key has identities of its own.
	other, err := f.s.Keys().Create("other")
	if err != nil {
		t.Fatal(err)
	}
	r, err := f.try("POST", "/v2/sandboxes", `{"templateID":"base","metadata":{"a":"1"}}`, requestHeader, "one", "X-API-Key", other.Secret)
	if err != nil {
		t.Fatal(err)
	}
	if f.want(r, 201).field(t, "sandboxID") == a.field(t, "sandboxID") {
		t.Error("another key got the sandbox")
	}
}

func TestLogsAndMetrics(t *testing.T) {
	f := startLocal(t, Options{})
	sb := f.create(nil)
	path := "/sandboxes/" + sb.SandboxID
	var metrics []api.Metric
	f.want(f.do("GET", path+"/metrics", nil), 200).decode(t, &metrics)
	if len(metrics) == 0 || metrics[0].CPUCount < 1 || metrics[0].MemTotal == 0 || metrics[0].DiskTotal == 0 || metrics[0].TimestampUnix == 0 {
		t.Errorf("%+v", metrics)
	}
	f.want(f.do("GET", path+fmt.Sprintf("/metrics?start=%d", time.Now().Add(time.Hour).Unix()), nil), 200).decode(t, &metrics)
	if len(metrics) != 0 {
		t.Errorf("metrics of the future: %+v", metrics)
	}
	f.want(f.do("GET", path+"/metrics?start=x", nil), 400)
	f.want(f.do("GET", path+"/metrics?start=5&end=4", nil), 400)
	r := f.want(f.do("GET", "/sandboxes/metrics?sandbox_ids=abc,"+sb.SandboxID, nil), 200)
	if got := r.field(t, "sandboxes").(map[string]any); len(got) != 1 || got[sb.SandboxID] == nil {
		t.Errorf("%s", r.body)
	}
	f.want(f.do("GET", "/sandboxes/metrics", nil), 400)
	f.want(f.do("GET", "/sandboxes/metrics?sandbox_ids=A", nil), 400)

	f.want(f.do("DELETE", path, nil), 204)
	messages := func(query string) (all []string) {
		var out struct{ Logs []logEntry }
		f.want(f.do("GET", "/v2"+path+"/logs"+query, nil), 200).decode(t, &out)
		for _, e := range out.Logs {
			all = append(all, e.Message)
		}
		return all
	}
	want := []string{"sandbox created", "sandbox killed"}
	if got := messages(""); !slices.Equal(got, want) {
		t.Errorf("logs %q", got)
	}
	if got := messages("?direction=backward&limit=1"); !slices.Equal(got, want[1:]) {
		t.Errorf("backward %q", got)
	}
	if got := messages("?search=created&level=info"); !slices.Equal(got, want[:1]) {
		t.Errorf("search %q", got)
	}
	if got := messages("?level=warn"); len(got) != 0 {
		t.Errorf("warnings %q", got)
	}
	if got := messages(fmt.Sprintf("?cursor=%d", time.Now().Add(time.Hour).UnixMilli())); len(got) != 0 {
		t.Errorf("of the future %q", got)
	}
	var v1 struct {
		Logs       []struct{ Line string }
		LogEntries []logEntry
	}
	f.want(f.do("GET", path+"/logs", nil), 200).decode(t, &v1)
	if len(v1.Logs) != 2 || v1.Logs[0].Line != want[0] || len(v1.LogEntries) != 2 {
		t.Errorf("%+v", v1)
	}
	for _, q := range []string{"?limit=-1", "?limit=1001", "?direction=up", "?level=loud", "?cursor=x"} {
		f.want(f.do("GET", "/v2"+path+"/logs"+q, nil), 400)
	}
}
