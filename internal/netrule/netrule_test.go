package netrule

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"example.com", "example.com"},
		{"EXAMPLE.com.", "example.com"},
		{"bücher.example", "xn--bcher-kva.example"},
		{"*.Bücher.example:8443", "*.xn--bcher-kva.example:8443"},
		{"example.com:*", "example.com:*"},
		{"intranet", "intranet"},
		{"_dns.example.com:53", "_dns.example.com:53"},
		{"10.0.0.0/8", "10.0.0.0/8"},
		{"10.0.0.0/8:8080", "10.0.0.0/8:8080"},
		{"1.2.3.4", "1.2.3.4"},
		{"1.2.3.4:22", "1.2.3.4:22"},
		{"1.2.3.4/32:22", "1.2.3.4:22"},
		{"2001:db8::1", "2001:db8::1"},
		{"[2001:db8::1]:22", "[2001:db8::1]:22"},
		{"2001:DB8::/32", "2001:db8::/32"},
		{"2001:db8::/32:22", "[2001:db8::/32]:22"},
		{"[2001:db8::/32]:22", "[2001:db8::/32]:22"},
	} {
		r, err := Parse(c.in)
		if err != nil || r.String() != c.want {
			t.Errorf("%s: got %q, %v", c.in, r, err)
			continue
		}
		if again, err := Parse(r.String()); err != nil || again != r {
			t.Errorf("%s: read again %+v, %v", c.in, again, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", "empty"}, {"a b", "white space"}, {"https://a.example", "page"}, {"a.example/path", "no IP address"},
		{"*", "host name"}, {"*.com", "two labels"}, {"a.*.com", "host name"}, {"*a.com", "host name"}, {"**.a.com", "host name"},
		{"a.example:0", "port"}, {"a.example:65536", "port"}, {"a.example:+80", "port"}, {"a.example:", "port"}, {"a.example:http", "port"}, {"a.example:080", "port"},
		{"localhost", "sandbox itself"}, {"a.localhost:80", "sandbox itself"},
		{"127.1", "usual form"}, {"0x7f.1", "usual form"}, {"2130706433", "usual form"}, {"0177.0.0.1", "usual form"}, {"a.0x7f", "usual form"},
		{"::ffff:127.0.0.1", "127.0.0.1"}, {"fe80::1%eth0", "zone"}, {"10.0.0.1/8", "10.0.0.0/8"}, {"10.0.0.0/33", "range"},
		{"[a.example]:80", "IPv6"}, {"[::1", "closed"}, {"[::1]80", "bracket"}, {"1:2", "usual form"},
		{"-a.example", "dash"}, {"a..example", "parts"}, {strings.Repeat("a", 64) + ".example", "parts"}, {strings.Repeat("a.", 130) + "com", "253"},
		{"a\xff.example", "host name"}, {"a..", "parts"},
	} {
		r, err := Parse(c.in)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), `network rule "`) {
			t.Errorf("%q: got %v, %v; want %q", c.in, r, err, c.want)
		}
	}
}

func list(t *testing.T, items ...string) List {
	t.Helper()
	l, err := ParseList(items)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestNames(t *testing.T) {
	l := list(t, "example.com", "*.pypi.example:8443", "all.example:*")
	for _, c := range []struct {
		name string
		port uint16
		rule string
	}{
		{"example.com", 443, "example.com"}, {"example.com", 80, "example.com"}, {"example.com", 22, ""},
		{"www.example.com", 443, ""}, {"notexample.com", 443, ""}, {"example.com.evil.example", 443, ""},
		{"a.pypi.example", 8443, "*.pypi.example:8443"}, {"a.b.pypi.example", 8443, "*.pypi.example:8443"},
		{"pypi.example", 8443, ""}, {".pypi.example", 8443, ""}, {"xpypi.example", 8443, ""}, {"a.pypi.example", 443, ""},
		{"all.example", 1, "all.example:*"},
	} {
		r, ok := l.Name(c.name, c.port)
		if ok != (c.rule != "") || ok && r.String() != c.rule {
			t.Errorf("%s:%d: %v %v", c.name, c.port, r, ok)
		}
	}
	if got := l.Ports(); !slices.Equal(got, []uint16{80, 443, 8443}) {
		t.Error(got)
	}
	if got := l.Names(); !slices.Equal(got, []string{"example.com", "all.example"}) {
		t.Error(got)
	}
}

func TestAddresses(t *testing.T) {
	l := list(t, "0.0.0.0/0", "10.1.0.0/16:80", "::/0", "127.0.0.1:5432", "fd00::/8:80")
	for _, c := range []struct {
		addr string
		port uint16
		want bool
	}{
		{"93.184.216.34", 443, true}, {"93.184.216.34", 22, false},
		{"10.1.2.3", 80, true}, {"10.1.2.3", 443, false}, {"10.2.0.1", 80, false},
		{"127.0.0.1", 5432, true}, {"127.0.0.1", 80, false}, {"127.0.0.2", 5432, false},
		{"169.254.169.254", 80, false}, {"198.18.0.1", 80, false}, {"0.0.0.0", 80, false},
		{"2606:4700::1", 443, true}, {"::1", 443, false}, {"fd00::1", 80, true}, {"fe80::1", 80, false},
		{"64:ff9b::7f00:1", 80, false}, {"2002:7f00:1::1", 80, false}, {"::ffff:10.1.2.3", 80, false}, {"::", 80, false},
	} {
		if _, ok := l.Address(netip.MustParseAddr(c.addr), c.port); ok != c.want {
			t.Errorf("%s:%d: %v", c.addr, c.port, ok)
		}
	}
}

func TestSpecial(t *testing.T) {
	for _, a := range []string{"8.8.8.8", "172.15.0.1", "172.32.0.1", "100.128.0.1", "198.20.0.1", "2606:4700::1", "2a00::1"} {
		if s := Special(netip.MustParseAddr(a)); s != "" {
			t.Errorf("%s is %s", a, s)
		}
	}
	for _, a := range []string{"0.0.0.0", "10.0.0.1", "100.64.0.1", "127.9.9.9", "169.254.169.254", "172.31.255.255", "192.168.1.1", "198.19.255.255",
		"224.0.0.1", "255.255.255.255", "::", "::1", "::127.0.0.1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:a00:1::", "2001:0:1::", "fd12::1", "fe80::1", "fec0::1", "ff02::1", "5f00::1", "4000::1"} {
		if Special(netip.MustParseAddr(a)) == "" {
			t.Errorf("%s is not special", a)
		}
	}
	if Special(netip.Addr{}) == "" {
		t.Error("no address is an address")
	}
}

func TestListBounds(t *testing.T) {
	if _, err := ParseList(nil); err == nil {
		t.Error("an empty list")
	}
	if _, err := ParseList(slices.Repeat([]string{"a.example"}, MaxRules+1)); err == nil {
		t.Error("too many rules")
	}
	var ports []string
	for i := range MaxPorts + 1 {
		ports = append(ports, netip.AddrPortFrom(netip.MustParseAddr("1.2.3.4"), uint16(1000+i)).String())
	}
	if _, err := ParseList(ports); err == nil || !strings.Contains(err.Error(), "65 different ports") {
		t.Error(err)
	}
	if l := list(t, "a.example", "A.example."); len(l) != 1 {
		t.Error(l)
	}
}

func TestCovers(t *testing.T) {
	l := list(t, "a.example", "*.b.example:*", "10.0.0.0/8", "0.0.0.0/0")
	for s, want := range map[string]bool{
		"a.example": true, "a.example:443": true, "a.example:22": false, "a.example:*": false, "x.a.example": false,
		"x.b.example:22": true, "*.x.b.example": true, "*.b.example:*": true, "b.example": false, "*.a.example": false,
		"10.1.0.0/16": true, "10.1.0.0/16:22": false, "192.168.0.0/16": false, "8.8.8.8": true, "::/0": false, "0.0.0.0/0": true, "0.0.0.0/1": false,
	} {
		r, err := Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.Covers(r); got != want {
			t.Errorf("%s: %v", s, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"a.example", "*.a.example:80", "10.0.0.0/8:1", "[2001:db8::1]:2", "bücher.example", "::/0:*", "0x7f.1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := Parse(s)
		if err != nil {
			return
		}
		if again, err := Parse(r.String()); err != nil || again != r {
			t.Fatalf("%q is %q, which is %+v, %v", s, r, again, err)
		}
		if r.IsName() == r.Prefix.IsValid() {
			t.Fatalf("%q: neither or both: %+v", s, r)
		}
		if a, err := netip.ParseAddr(r.Name); err == nil {
			t.Fatalf("%q is the address %s as a name", s, a)
		}
		// No name and no address is permitted that the rule does not hold.
		if r.HasName("other.invalid") && !strings.HasSuffix("other.invalid", r.Name) {
			t.Fatalf("%q permits another name", s)
		}
	})
}
