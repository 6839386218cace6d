package gateway

import (
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/api"
)

// TestContextsToken: who knows nothing but the id of a sandbox neither sees nor
// makes nor ends contexts of code. E2B's client shows the traffic token for them.
func TestContextsToken(t *testing.T) {
	f := startLocal(t, Options{})
	sb, other := f.create(nil), f.create(nil)
	if sb.TrafficAccessToken == nil || other.TrafficAccessToken == nil {
		t.Fatal("no traffic token")
	}
	// Other than data, without the access token.
	stranger := func(method, path string, body any, headers ...string) *reply {
		r, err := f.try(method, path, body, append([]string{"E2b-Sandbox-Id", sb.SandboxID, "E2b-Sandbox-Port", "49999"}, headers...)...)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	bash := map[string]any{"language": "bash"}
	made := f.want(stranger("POST", "/contexts", bash, api.HeaderTraffic, *sb.TrafficAccessToken), 200)
	id := made.field(t, "id").(string)
	for _, c := range []struct {
		name    string
		headers []string
		status  int
	}{
		{"nothing", nil, 401},
		{"an empty token", []string{api.HeaderTraffic, ""}, 401},
		{"another sandbox's", []string{api.HeaderTraffic, *other.TrafficAccessToken}, 401},
		{"a wrong access token", []string{api.HeaderTraffic, *sb.TrafficAccessToken, "X-Access-Token", "wrong"}, 401},
		{"a user", []string{"Authorization", "Basic cm9vdDo="}, 401},
		{"traffic token", []string{api.HeaderTraffic, *sb.TrafficAccessToken}, 200},
		{"access token", []string{"X-Access-Token", sb.EnvdAccessToken}, 200},
	} {
		for _, r := range [][2]string{{"GET", "/contexts"}, {"POST", "/contexts/" + id + "/restart"}} {
			if got := stranger(r[0], r[1], nil, c.headers...).StatusCode; got != c.status {
				t.Errorf("%s: %s %s: status %d, want %d", c.name, r[0], r[1], got, c.status)
			}
		}
	}
	f.want(stranger("POST", "/contexts", bash), 401)
	f.want(stranger("DELETE", "/contexts/"+id, nil), 401)
	f.want(stranger("POST", "/execute", map[string]any{"code": "1"}, api.HeaderTraffic, *sb.TrafficAccessToken), 401)
	f.want(stranger("DELETE", "/contexts/"+id, nil, api.HeaderTraffic, *sb.TrafficAccessToken), 200)
}
