// Package netrule is the one spelling of what a sandbox may reach: host[:port],
// *.suffix[:port], address[:port] and CIDR[:port]. The options of sandboxfn, the
// directives and the providers all parse with it. It decides nothing about how a
// rule is enforced.
package netrule

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// Bounds of a list.
const (
	MaxRules = 256
	MaxPorts = 64 // different ones in a list
)

// A Rule permits connections to a name, to the names below a suffix, or to a
// range of addresses, on some ports. The zero Rule permits nothing.
type Rule struct {
	// Name is in ASCII and lower case, without a dot at the end; empty for
	// addresses. With Suffix it stands for the names below it, at any depth, and
	// not for itself.
	Name   string
	Suffix bool

	// Prefix is valid for addresses only, and masked.
	Prefix netip.Prefix

	// Port is zero for the default, 80 and 443. Every means any port.
	Port  uint16
	Every bool
}

// defaultPorts are those of a rule that names none.
var defaultPorts = []uint16{80, 443}

// Ports are the ports of r; nil when it permits every port.
func (r Rule) Ports() []uint16 {
	switch {
	case r.Every:
		return nil
	case r.Port != 0:
		return []uint16{r.Port}
	}
	return defaultPorts
}

// IsName reports whether r is about names.
func (r Rule) IsName() bool { return r.Name != "" }

// String is the rule in its one spelling. Parse reads it again.
func (r Rule) String() string {
	host := r.Name
	if r.Suffix {
		host = "*." + host
	}
	if !r.IsName() {
		host = r.Prefix.String()
		if r.Prefix.IsSingleIP() {
			host = r.Prefix.Addr().String()
		}
		if r.Prefix.Addr().Is6() && (r.Port != 0 || r.Every) {
			host = "[" + host + "]"
		}
	}
	switch {
	case r.Every:
		return host + ":*"
	case r.Port != 0:
		return host + ":" + strconv.Itoa(int(r.Port))
	}
	return host
}

// HasPort reports whether r permits a port.
func (r Rule) HasPort(port uint16) bool { return r.Every || slices.Contains(r.Ports(), port) }

// HasName reports whether r is about name, which is as [Name] returns it.
func (r Rule) HasName(name string) bool {
	if !r.IsName() {
		return false
	}
	if !r.Suffix {
		return name == r.Name
	}
	rest, ok := strings.CutSuffix(name, r.Name)
	return ok && len(rest) > 1 && rest[len(rest)-1] == '.'
}

// HasAddress reports whether r is about an address. A range that holds both
// public addresses and others is about the public ones only: who writes
// 0.0.0.0/0 does not mean the services of his own network.
func (r Rule) HasAddress(a netip.Addr) bool {
	if !r.Prefix.IsValid() || !r.Prefix.Contains(a) {
		return false
	}
	return Special(a) == "" || specialPrefix(r.Prefix)
}

// Parse reads one rule. Its error names the rule and says what is wrong with it.
func Parse(s string) (Rule, error) {
	r, err := parse(s)
	if err != nil {
		return Rule{}, fmt.Errorf("network rule %q: %w", clip(s), err)
	}
	return r, nil
}

func parse(s string) (Rule, error) {
	switch {
	case s == "":
		return Rule{}, errors.New("it is empty")
	case strings.ContainsAny(s, " \t\r\n\x00"):
		return Rule{}, errors.New("it holds white space")
	case strings.Contains(s, "://"):
		return Rule{}, errors.New("it is an address of a page; write its host, and :PORT where that is neither 80 nor 443")
	}
	host, port, hasPort, err := split(s)
	if err != nil {
		return Rule{}, err
	}
	var r Rule
	if hasPort {
		if r.Port, r.Every, err = parsePort(port); err != nil {
			return Rule{}, err
		}
	}
	if r.Prefix, err = parsePrefix(host); err != nil || r.Prefix.IsValid() {
		return r, err
	}
	name := host
	if rest, ok := strings.CutPrefix(host, "*."); ok {
		r.Suffix, name = true, rest
	}
	if r.Name, err = Name(name); err != nil {
		return Rule{}, err
	}
	switch {
	case r.Name == "localhost" || strings.HasSuffix(r.Name, ".localhost"):
		return Rule{}, errors.New("localhost is the sandbox itself; name an address, as 127.0.0.1:8080, to reach this machine through the proxy")
	case r.Suffix && !strings.Contains(r.Name, "."):
		return Rule{}, errors.New("a suffix has at least two labels, as in *.example.com")
	}
	return r, nil
}

// split takes the port off. An IPv6 address that has one is in brackets, or is a
// range, whose length ends it.
func split(s string) (host, port string, hasPort bool, err error) {
	if rest, ok := strings.CutPrefix(s, "["); ok {
		host, after, ok := strings.Cut(rest, "]")
		if !ok {
			return "", "", false, errors.New("a bracket is not closed")
		}
		if !strings.Contains(host, ":") {
			return "", "", false, errors.New("brackets are for addresses of IPv6")
		}
		if after == "" {
			return host, "", false, nil
		}
		port, ok := strings.CutPrefix(after, ":")
		if !ok {
			return "", "", false, errors.New("after the bracket comes :PORT or nothing")
		}
		return host, port, true, nil
	}
	addr, bits, isRange := strings.Cut(s, "/")
	if isRange {
		bits, port, hasPort = strings.Cut(bits, ":")
		return addr + "/" + bits, port, hasPort, nil
	}
	if strings.Count(s, ":") > 1 {
		return s, "", false, nil
	}
	host, port, hasPort = strings.Cut(s, ":")
	return host, port, hasPort, nil
}

func parsePort(s string) (port uint16, every bool, err error) {
	if s == "*" {
		return 0, true, nil
	}
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] == '+' || s[0] == '0' {
		return 0, false, fmt.Errorf("port %q is not a number from 1 to %d, or * for every port", clip(s), math.MaxUint16)
	}
	return uint16(n), false, nil
}

// parsePrefix returns the zero Prefix for what is no address.
func parsePrefix(host string) (netip.Prefix, error) {
	addr, _, isRange := strings.Cut(host, "/")
	a, err := netip.ParseAddr(addr)
	switch {
	case err != nil && (isRange || strings.Contains(addr, ":")):
		return netip.Prefix{}, fmt.Errorf("%q is no IP address; those of IPv4 have four decimal numbers", clip(addr))
	case err != nil:
		return netip.Prefix{}, nil
	case a.Zone() != "":
		return netip.Prefix{}, errors.New("addresses with a zone are of one machine only")
	case a.Is4In6():
		return netip.Prefix{}, fmt.Errorf("write the IPv4 address itself: %s", a.Unmap())
	case !isRange:
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(host)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is no range of addresses", clip(host))
	}
	if p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("the range has bits behind its length; write %s", p.Masked())
	}
	return p, nil
}

// Name brings a host name into the form that rules and questions have: ASCII,
// lower case, no dot at the end. What is not one, or can be read as a number, is
// an error: other programs take 0x7f.1 and 2130706433 for addresses.
func Name(s string) (string, error) {
	name := strings.TrimSuffix(s, ".")
	for i := 0; i < len(name); i++ {
		if name[i] < 0x80 {
			continue
		}
		ascii, err := idna.Lookup.ToASCII(name)
		if err == nil && !utf8.ValidString(name) {
			err = errors.New("it is no UTF-8")
		}
		if err != nil {
			return "", fmt.Errorf("%q is no host name: %w", clip(s), err)
		}
		name = ascii
		break
	}
	name = strings.ToLower(name)
	if name == "" || len(name) > 253 {
		return "", fmt.Errorf("%q is no host name: it has 1 to 253 bytes", clip(s))
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return "", fmt.Errorf("%q is no host name: its parts have 1 to 63 bytes, and no dash first or last", clip(s))
		}
		if strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return "", fmt.Errorf("%q is no host name: it has other characters than letters, digits, - and _", clip(s))
		}
		last = label
	}
	// The rule of the URL standard for what ends in a number.
	if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") && strings.Trim(last[2:], "0123456789abcdef") == "" {
		return "", fmt.Errorf("%q is neither a host name nor an IP address in its usual form", clip(s))
	}
	return name, nil
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
