package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestAddressOf(t *testing.T) {
	const id = "abc123"
	both := map[string][]string{"E2b-Sandbox-Id": {id}, "E2b-Sandbox-Port": {"3000"}}
	at := func(port int) *address { return &address{id, port} }
	for _, c := range []struct {
		host    string
		headers map[string][]string
		want    *address
		bad     bool
	}{
		{host: "127.0.0.1:3000"},
		{host: "localhost"},
		{host: ""},
		{host: "[::1]:3000"},
		{host: "[::1]"},
		{host: "api.example.com"},
		{host: "example.com"},
		{host: "gateway.local:3000"},
		{host: "sandbox.example.com"},
		{host: "127.0.0.1:3000", headers: both, want: at(3000)},
		{host: "localhost:3000", headers: both, want: at(3000)},
		{host: "LOCALHOST.", headers: both, want: at(3000)},
		{host: "[::1]:3000", headers: both, want: at(3000)},
		{host: "sandbox.e2b.app", headers: both, want: at(3000)},
		{host: "example.com", headers: both, want: at(3000)},
		{host: "gateway.local", headers: both, want: at(3000)},
		{host: "49983-abc123.example.com", want: at(49983)},
		{host: "49983-abc123.example.com:3000", want: at(49983)},
		{host: "49983-ABC123.Example.Com.", want: at(49983)},
		{host: "49983-abc123.localhost:3000", want: at(49983)},
		{host: "49983-abc123", want: at(49983)},
		{host: "8080-abc123-local.example.com", want: at(8080)},
		{host: "8080-abc123-a-b-c.example.com", want: at(8080)},
		{host: "3000-abc123.example.com", headers: both, want: at(3000)},
		{host: "3001-abc123.example.com", headers: both, bad: true}, // they differ
		{host: "3000-other.example.com", headers: both, bad: true},
		{host: "0-abc123.example.com", bad: true},
		{host: "65536-abc123.example.com", bad: true},
		{host: "99999999999999999999-abc123.example.com", bad: true},
		{host: "80-.example.com", bad: true},
		{host: "80-a_b.example.com", bad: true},
		{host: "80--abc.example.com", bad: true},
		{host: "-abc123.example.com"},
		{host: "x80-abc123.example.com"},
		{host: "user@49983-abc123.example.com", bad: true},
		{host: "a:b@localhost", bad: true},
		{host: "localhost:abc", bad: true},
		{host: "local host", bad: true},
		{host: "local/host", bad: true},
		{host: "[::1", bad: true},
		{host: "::1", bad: true},
		{host: "[fe80::1%25eth0]", bad: true},
		{host: strings.Repeat("a", 400), bad: true},
		{host: "localhost", headers: map[string][]string{"E2b-Sandbox-Id": {id}}, bad: true},
		{host: "localhost", headers: map[string][]string{"E2b-Sandbox-Port": {"80"}}, bad: true},
		{host: "localhost", headers: map[string][]string{"E2b-Sandbox-Id": {id, id}, "E2b-Sandbox-Port": {"80"}}, bad: true},
		{host: "localhost", headers: map[string][]string{"E2b-Sandbox-Id": {id}, "E2b-Sandbox-Port": {"80", "81"}}, bad: true},
		{host: "localhost", headers: map[string][]string{"E2b-Sandbox-Id": {""}, "E2b-Sandbox-Port": {"80"}}, bad: true},
		{host: "localhost", headers: map[string][]string{"E2b-Sandbox-Id": {"../x"}, "E2b-Sandbox-Port": {"80"}}, bad: true},
		{host: "localhost", headers: map[string][]string{"E2b-Sandbox-Id": {"ABC"}, "E2b-Sandbox-Port": {"80"}}, bad: true},
		{host: "localhost", headers: map[string][]string{"E2b-Sandbox-Id": {id}, "E2b-Sandbox-Port": {"+80"}}, bad: true},
		{host: "localhost", headers: map[string][]string{"E2b-Sandbox-Id": {id}, "E2b-Sandbox-Port": {" 80"}}, bad: true},
		{host: "localhost", headers: map[string][]string{"E2b-Sandbox-Id": {id}, "E2b-Sandbox-Port": {"080"}}, want: at(80)},
		{host: "localhost", headers: map[string][]string{"E2b-Sandbox-Id": {id + "-local"}, "E2b-Sandbox-Port": {"80"}}, want: at(80)},
		{host: "1-2.my.net"}, // the gateway's own name
		{host: "api.1-2.my.net"},
		{host: "1-2.my.net", headers: both, want: at(3000)},
	} {
		a, err := addressOf(&http.Request{Host: c.host, Header: c.headers}, "1-2.my.net")
		if got, want := fmt.Sprint(a, err != nil), fmt.Sprint(c.want, c.bad); got != want {
			t.Errorf("%q %v: %s, want %s (%v)", c.host, c.headers, got, want, err)
		}
	}
}

func FuzzAddress(f *testing.F) {
	f.Add("49983-abc.example.com:80", "abc", "80")
	f.Add("[::1]:3000", "", "")
	f.Fuzz(func(t *testing.T, host, id, port string) {
		r := &http.Request{Host: host, Header: http.Header{}}
		if id != "" {
			r.Header.Set("E2b-Sandbox-Id", id)
		}
		if port != "" {
			r.Header.Set("E2b-Sandbox-Port", port)
		}
		a, err := addressOf(r, "example.com")
		if err == nil && a != nil && (!validID(a.id) || a.port < 1 || a.port > 65535) {
			t.Errorf("%q %q %q: %+v", host, id, port, a)
		}
		if err != nil && a != nil {
			t.Errorf("both %v and %v", a, err)
		}
	})
}

func TestInternalPath(t *testing.T) {
	for path, want := range map[string]bool{
		"/init": true, "/INIT": true, "//init": true, "/./init": true, "/x/../init": true, "/init/": true, "/init/x": true, "\\init": true,
		"/freeze": true, "/unfreeze": true, "/collapse": true, "/fsfreeze": true, "/fsthaw": true, "/upgrade": true,
		"/": false, "/files": false, "/initial": false, "/x/init": false, "/health": false, "/process.Process/Start": false,
	} {
		if got := internalPath(path); got != want {
			t.Errorf("%q: %v", path, got)
		}
	}
}

func TestHygiene(t *testing.T) {
	key := keyPrefix + strings.Repeat("ab", keyHexBytes)
	for _, c := range []struct {
		header, value string
		envd, other   bool // it passes
	}{
		{"X-Access-Token", "t", true, false},
		{"X-API-Key", key, false, false},
		{"X-API-Key", "of the user's own service", false, true},
		{"Authorization", "Bearer " + key, false, false},
		{"Authorization", "bearer  " + key, false, false},
		{"Authorization", "Bearer of-the-user", true, true},
		{"Authorization", "Basic dXNlcjo=", true, true},
		{"E2b-Sandbox-Id", "x", false, false},
		{"E2b-Sandbox-Port", "1", false, false},
		{"E2B-Traffic-Access-Token", "x", false, false},
		{"Cookie", "a=b", true, true},
		{"Keepalive-Ping-Interval", "50", true, true},
	} {
		for port, want := range map[int]bool{envdPort: c.envd, 8080: c.other} {
			h := http.Header{}
			h.Set(c.header, c.value)
			hygiene(h, port)
			if got := h.Get(c.header) != ""; got != want {
				t.Errorf("%s: %s on %d passes: %v", c.header, c.value, port, got)
			}
		}
	}
}
