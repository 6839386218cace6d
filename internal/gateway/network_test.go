package gateway

import (
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/internal/netrule"
)

// TestNetworkAsked checks what becomes of the fields of a creation under each
// setting of the gateway: nothing that it does not allow, and nothing less than
// was asked for without a word.
func TestNetworkAsked(t *testing.T) {
	yes, no := true, false
	all := []string{"0.0.0.0/0"}
	for _, c := range []struct {
		setting string
		access  *bool
		network *api.Network
		want    string // the mode and the rules, or a part of the error
	}{
		{"loopback", &yes, nil, "loopback"},
		{"loopback", nil, &api.Network{AllowOut: []string{"a.example"}, DenyOut: all}, "started with --network list"},
		{"none", nil, &api.Network{DenyOut: all}, "none"},
		{"host", &yes, nil, "host"},
		{"host", &no, nil, "loopback"},
		{"host", nil, &api.Network{AllowOut: []string{"a.example"}}, "denyOut 0.0.0.0/0"},
		{"host", nil, &api.Network{AllowOut: []string{"a.example", "*.b.example"}, DenyOut: all}, "list a.example *.b.example"},
		{"list", &yes, nil, "loopback"},
		{"list", &no, &api.Network{AllowOut: []string{"A.example."}}, "list a.example"},
		{"list", nil, &api.Network{AllowOut: []string{"8.8.8.8"}, DenyOut: all}, "every port"},
		{"list", nil, &api.Network{AllowOut: []string{"10.0.0.0/8"}, DenyOut: all}, "every port"},
		{"list", nil, &api.Network{AllowOut: []string{"a.example:22"}, DenyOut: all}, "has a port"},
		{"list", nil, &api.Network{AllowOut: []string{"http://a.example"}, DenyOut: all}, "network rule"},
		{"list", nil, &api.Network{AllowOut: []string{"a.example"}, DenyOut: []string{"1.1.1.1"}}, "denyOut can only be"},
		{"list", nil, &api.Network{AllowOut: []string{"a.example"}, DenyOut: all, EgressProxy: &api.EgressProxy{}}, "egressProxy"},
		{"a.example,*.b.example", &yes, nil, "list a.example *.b.example"},
		{"a.example,*.b.example", &no, nil, "loopback"},
		{"a.example,*.b.example", nil, &api.Network{AllowOut: []string{"x.b.example"}, DenyOut: all}, "list x.b.example"},
		{"a.example,*.b.example", nil, &api.Network{AllowOut: []string{"c.example"}, DenyOut: all}, "more than this gateway allows"},
	} {
		s := &Server{opts: Options{Network: c.setting}}
		if strings.Contains(c.setting, ".") {
			var err error
			if s.rules, err = netrule.ParseList(strings.Split(c.setting, ",")); err != nil {
				t.Fatal(err)
			}
		}
		p, err := s.network(&api.NewSandbox{AllowInternetAccess: c.access, Network: c.network})
		if err != nil {
			if !strings.Contains(err.Error(), c.want) || strings.Contains(c.want, "list ") && !strings.Contains(c.want, "--network") {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		if got := strings.Join(append([]string{p.Mode}, p.Allow...), " "); got != c.want {
			t.Errorf("%s, %+v: got %q, want %q", c.setting, c.network, got, c.want)
		}
	}
}
