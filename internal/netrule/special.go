package netrule

import "net/netip"

// A special range is one whose addresses are not those of hosts on the internet.
type special struct {
	prefix netip.Prefix
	what   string
}

// specials are from the registries of special-purpose addresses (RFC 6890) of
// IPv4 and IPv6. Addresses that hold one of IPv4 (mapped, NAT64, 6to4, Teredo)
// are among them: they lead to whatever that one is.
var specials = func() []special {
	var out []special
	for _, s := range []struct{ prefix, what string }{
		{"0.0.0.0/8", "of this host"},
		{"10.0.0.0/8", "private"},
		{"100.64.0.0/10", "shared by a carrier"},
		{"127.0.0.0/8", "loopback"},
		{"169.254.0.0/16", "link-local, as of metadata services"},
		{"172.16.0.0/12", "private"},
		{"192.0.0.0/24", "reserved"},
		{"192.0.2.0/24", "for documentation"},
		{"192.88.99.0/24", "a 6to4 relay"},
		{"192.168.0.0/16", "private"},
		{"198.18.0.0/15", "for benchmarks, and used inside"},
		{"198.51.100.0/24", "for documentation"},
		{"203.0.113.0/24", "for documentation"},
		{"224.0.0.0/4", "multicast"},
		{"240.0.0.0/4", "reserved or broadcast"},

		{"::1/128", "loopback"},
		{"::ffff:0:0/96", "an IPv4 address mapped into IPv6"},
		{"64:ff9b::/96", "an IPv4 address behind NAT64"},
		{"64:ff9b:1::/48", "an IPv4 address behind NAT64"},
		{"2001::/23", "a tunnel, or reserved"},
		{"2001:db8::/32", "for documentation"},
		{"2002::/16", "an IPv4 address behind 6to4"},
		{"3fff::/20", "for documentation"},
		{"fc00::/7", "private"},
		{"fe80::/10", "link-local"},
		{"fec0::/10", "site-local"},
		{"ff00::/8", "multicast"},
	} {
		out = append(out, special{netip.MustParsePrefix(s.prefix), s.what})
	}
	return out
}()

// global is what is given out of IPv6; the rest is reserved.
var global = netip.MustParsePrefix("2000::/3")

// Special says what an address is that no host on the internet has, or "".
func Special(a netip.Addr) string {
	if a.Is4In6() {
		return "an IPv4 address mapped into IPv6"
	}
	for _, s := range specials {
		if s.prefix.Contains(a) {
			return s.what
		}
	}
	switch {
	case !a.IsValid():
		return "not valid"
	case a.Is6() && !global.Contains(a):
		return "reserved"
	}
	return ""
}

// specialPrefix reports whether p holds special addresses of one kind only, so
// that who wrote it has meant them.
func specialPrefix(p netip.Prefix) bool {
	for _, s := range specials {
		if s.prefix.Bits() <= p.Bits() && s.prefix.Contains(p.Addr()) {
			return true
		}
	}
	return p.Addr().Is6() && !global.Overlaps(p) && p.Bits() >= 8
}
