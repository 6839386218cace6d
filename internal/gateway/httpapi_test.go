package gateway

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/agent-sandbox/sandbox-go/internal/api"
)

// TestHTTPAPI: the names 9000 and 9001 lead to the runtime's HTTP API, which asks
// for the token of the sandbox.
func TestHTTPAPI(t *testing.T) {
	f := startLocal(t, Options{Domain: "sandboxes.example"})
	sb, other := f.create(nil), f.create(nil)
	host := func(port string) []string { return []string{"Host", port + "-" + sb.SandboxID + ".sandboxes.example"} }
	for _, c := range []struct {
		name    string
		headers []string
		status  int
	}{
		{"no token", host("9000"), 401},
		{"bearer", append(host("9000"), "Authorization", "Bearer "+sb.EnvdAccessToken), 200},
		{"ours", append(host("9000"), "X-Sandbox-Token", sb.EnvdAccessToken), 200},
		{"ours, 9001", append(host("9001"), "X-Sandbox-Token", sb.EnvdAccessToken), 200},
		{"by headers", []string{"E2b-Sandbox-Id", sb.SandboxID, "E2b-Sandbox-Port", "9000", "X-Sandbox-Token", sb.EnvdAccessToken}, 200},
		{"another sandbox's", append(host("9000"), "X-Sandbox-Token", other.EnvdAccessToken), 401},
		{"the API key", append(host("9000"), "Authorization", "Bearer "+f.key), 401},
		{"the API key as ours", append(host("9000"), "X-Sandbox-Token", f.key), 401},
	} {
		r, err := f.try("POST", "/shell", map[string]any{"command": "echo hello"}, c.headers...)
		if err != nil {
			t.Fatal(err)
		}
		if r.StatusCode != c.status || c.status == 200 && r.field(t, "stdout") != "hello\n" {
			t.Errorf("%s: status %d: %s", c.name, r.StatusCode, r.body)
		}
	}
	r, err := f.try("GET", "/init", nil, append(host("9000"), "X-Sandbox-Token", sb.EnvdAccessToken)...)
	if err != nil || r.StatusCode != 404 {
		t.Errorf("internal path: %+v, %v", r, err)
	}
}

// TestHTTPAPITraffic: a sandbox that is not public asks for its traffic token
// beside its own.
func TestHTTPAPITraffic(t *testing.T) {
	f := startLocal(t, Options{})
	sb := f.create(map[string]any{"network": map[string]any{"allowPublicTraffic": false}})
	f.want(f.data(sb, 9000, "GET", "/capabilities", nil, "X-Sandbox-Token", sb.EnvdAccessToken), 403)
	f.want(f.data(sb, 9000, "GET", "/capabilities", nil, "X-Sandbox-Token", sb.EnvdAccessToken, api.HeaderTraffic, *sb.TrafficAccessToken), 200)
}

// TestHTTPAPITerminal: a WebSocket to a terminal passes through the gateway.
func TestHTTPAPITerminal(t *testing.T) {
	f := startLocal(t, Options{})
	sb := f.create(nil)
	r := f.want(f.data(sb, 9000, "POST", "/pty/sessions", map[string]any{"shell": "/bin/sh"}, "X-Sandbox-Token", sb.EnvdAccessToken), 200)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, "ws://"+f.addr+r.field(t, "ws_url").(string), &websocket.DialOptions{HTTPHeader: http.Header{
		"E2b-Sandbox-Id": {sb.SandboxID}, "E2b-Sandbox-Port": {"9001"}, "X-Sandbox-Token": {sb.EnvdAccessToken},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if err := conn.Write(ctx, websocket.MessageBinary, []byte("echo $((40+2))\n")); err != nil {
		t.Fatal(err)
	}
	shown := ""
	for !strings.Contains(shown, "42") {
		_, b, err := conn.Read(ctx)
		if err != nil {
			t.Fatalf("%v after %q", err, shown)
		}
		shown += string(b)
	}
	conn.Close(websocket.StatusNormalClosure, "")
}
