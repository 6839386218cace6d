package netrule

import (
	"fmt"
	"net/netip"
	"slices"
)

// A List is what a sandbox may reach: whatever one of its rules permits.
type List []Rule

// ParseList reads the rules of a list, at least one and at most [MaxRules].
func ParseList(items []string) (List, error) {
	switch {
	case len(items) == 0:
		return nil, fmt.Errorf("a list of network rules is empty; none is the network of a sandbox that reaches nothing")
	case len(items) > MaxRules:
		return nil, fmt.Errorf("%d network rules; at most %d", len(items), MaxRules)
	}
	var l List
	for _, s := range items {
		r, err := Parse(s)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(l, r) {
			l = append(l, r)
		}
	}
	if n := len(l.Ports()); n > MaxPorts {
		return nil, fmt.Errorf("network rules with %d different ports; at most %d", n, MaxPorts)
	}
	return l, nil
}

// Ports are all ports that rules name, sorted.
func (l List) Ports() []uint16 {
	var out []uint16
	for _, r := range l {
		out = append(out, r.Ports()...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Name returns the first rule that permits a name on a port. The name is as the
// function Name returns it.
func (l List) Name(name string, port uint16) (Rule, bool) {
	return l.first(func(r Rule) bool { return r.HasName(name) && r.HasPort(port) })
}

// AnyPort returns the first rule that is about a name.
func (l List) AnyPort(name string) (Rule, bool) {
	return l.first(func(r Rule) bool { return r.HasName(name) })
}

// Address returns the first rule that permits an address on a port.
func (l List) Address(a netip.Addr, port uint16) (Rule, bool) {
	return l.first(func(r Rule) bool { return r.HasAddress(a) && r.HasPort(port) })
}

// Names are the names that rules hold by themselves, in their order.
func (l List) Names() []string {
	var out []string
	for _, r := range l {
		if r.IsName() && !r.Suffix && !slices.Contains(out, r.Name) {
			out = append(out, r.Name)
		}
	}
	return out
}

// Covers reports whether everything that r permits a rule of l permits too.
func (l List) Covers(r Rule) bool {
	ports := r.Ports()
	if r.Every {
		ports = []uint16{0} // no rule but one for every port has it
	}
	for _, port := range ports {
		if _, ok := l.first(func(o Rule) bool { return o.about(r) && o.HasPort(port) }); !ok {
			return false
		}
	}
	return true
}

// about reports whether every host of r is one of o.
func (o Rule) about(r Rule) bool {
	switch {
	case !r.IsName():
		return o.Prefix == r.Prefix || o.Prefix.IsValid() && o.Prefix.Bits() <= r.Prefix.Bits() && o.HasAddress(r.Prefix.Addr())
	case r.Suffix:
		return o.Suffix && (o.Name == r.Name || o.HasName(r.Name))
	}
	return o.HasName(r.Name)
}

func (l List) first(ok func(Rule) bool) (Rule, bool) {
	if i := slices.IndexFunc(l, ok); i >= 0 {
		return l[i], true
	}
	return Rule{}, false
}
