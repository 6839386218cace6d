//go:build linux

package local

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/netrule"
	"github.com/agent-sandbox/sandbox-go/internal/nsinit"
)

// With a list of rules the network of a sandbox still has the loopback device
// and nothing else. Blocks of addresses that stand for names are local to that
// device, and so are the addresses that rules name; init listens on the ports
// of the rules and hands its listeners out, and whoever holds them decides what
// each connection leads to. A connection to any other address has no route.

// The blocks of addresses that stand for names, by index. The first address
// after the lowest is the device's own: programs that look whether the machine
// has addresses at all must find one.
var (
	block4 = netip.MustParsePrefix("198.18.0.0/15")            // RFC 2544: no host has one
	block6 = netip.MustParsePrefix("fd73:616e:6462:6f78::/64") // RFC 4193
)

// A netPlan is what init makes for a list of rules.
type netPlan struct {
	rules netrule.List
	proxy uint16 // port of the proxy, on 127.0.0.1
	keep  bool   // init keeps copies of the listeners
}

const dnsPort = 53

// newNetPlan chooses a port for the proxy that no rule names.
func newNetPlan(rules netrule.List, keep bool) *netPlan {
	n := &netPlan{rules: rules, proxy: 3128, keep: keep}
	for ports := rules.Ports(); slices.Contains(ports, n.proxy); {
		n.proxy++
	}
	return n
}

// A wantedListener is one that init makes.
type wantedListener struct {
	name   string // "tcp", "tcp6" or "udp", and the address
	family int
	kind   int
	at     netip.AddrPort
}

func (n *netPlan) listeners() []wantedListener {
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	var out []wantedListener
	add := func(network string, family, kind int, addr netip.Addr, port uint16) {
		at := netip.AddrPortFrom(addr, port)
		out = append(out, wantedListener{network + " " + at.String(), family, kind, at})
	}
	ports := n.rules.Ports()
	for _, port := range ports {
		add("tcp", unix.AF_INET, unix.SOCK_STREAM, netip.IPv4Unspecified(), port)
		add("tcp6", unix.AF_INET6, unix.SOCK_STREAM, netip.IPv6Unspecified(), port)
	}
	if !slices.Contains(ports, dnsPort) { // else the one above is for questions, too
		add("tcp", unix.AF_INET, unix.SOCK_STREAM, loopback, dnsPort)
	}
	add("udp", unix.AF_INET, unix.SOCK_DGRAM, loopback, dnsPort)
	add("tcp", unix.AF_INET, unix.SOCK_STREAM, loopback, n.proxy)
	return out
}

// routes are the ranges of the rules that a connection can be made to as to any
// other address. The loopback of the sandbox stays its own. A nil plan
// has none.
func (n *netPlan) routes() (v4, v6 []netip.Prefix) {
	if n == nil {
		return nil, nil
	}
	for _, r := range n.rules {
		p := r.Prefix
		switch {
		case !p.IsValid(), p.Addr().IsLoopback(), p.Overlaps(block4) && p.Bits() >= block4.Bits():
		case p.Addr().Is4() && !slices.Contains(v4, p):
			v4 = append(v4, p)
		case p.Addr().Is6() && !slices.Contains(v6, p):
			v6 = append(v6, p)
		}
	}
	return v4, v6
}

// noIPv6 are the ways in which a kernel says that it does without.
var noIPv6 = []syscall.Errno{
	unix.EAFNOSUPPORT, unix.EACCES, unix.EPERM, unix.EADDRNOTAVAIL, unix.EBADF, unix.EINVAL, unix.ENOTSUP,
	unix.ENETDOWN, unix.ENODEV, unix.ENOPROTOOPT, unix.EPROTONOSUPPORT, unix.ENOTSOCK, unix.ENETUNREACH,
}

// allow makes the addresses and the listeners of a list.
func (p *program) allow(n *netPlan) {
	v4, v6 := n.routes()
	p.add("open a socket for addresses", unix.SYS_SOCKET, nsinit.Int(unix.AF_NETLINK), nsinit.Int(unix.SOCK_RAW|unix.SOCK_CLOEXEC), nsinit.Int(unix.NETLINK_ROUTE))
	link := p.store()
	// The prefix of an address of a loopback device is local as a whole.
	p.netlink(stepAddress, link, newAddress(netip.PrefixFrom(block4.Addr().Next(), block4.Bits())), nil)
	for _, r := range v4 {
		p.netlink("route "+r.String(), link, newLocalRoute(r), nil)
	}
	p.netlink("add an address of IPv6", link, newAddress(netip.PrefixFrom(block6.Addr().Next(), 128)), noIPv6)
	for _, r := range v6 {
		p.netlink("route "+r.String(), link, newLocalRoute(r), noIPv6)
	}
	p.netlink("route "+block6.String(), link, newLocalRoute(block6), noIPv6)
	has6 := p.store()
	p.close(link)

	reg := 0
	for _, l := range n.listeners() {
		var ignore []syscall.Errno
		conditions := []nsinit.Arg{}
		if l.family == unix.AF_INET6 {
			ignore, conditions = noIPv6, append(conditions, has6)
		}
		reg = p.listen(l, reg, ignore)
		send := append([]nsinit.Arg{nsinit.Str(l.name), nsinit.Reg(reg)}, conditions...)
		p.add("hand out the listener on "+l.name, nsinit.SendFile, send...)
		if n.keep {
			p.keepListener(l, reg, conditions...)
		} else {
			p.add("close the listener on "+l.name, unix.SYS_CLOSE, nsinit.Reg(reg)).Ignore = ignore
		}
	}
}

// keepListener makes a listener a file of init.
func (p *program) keepListener(l wantedListener, reg int, conditions ...nsinit.Arg) {
	p.add("keep the listener on "+l.name, nsinit.KeepFile, append([]nsinit.Arg{nsinit.Str(keptPrefix + l.name), nsinit.Reg(reg)}, conditions...)...)
}

// netlink sends a message and checks the kernel's answer to it.
func (p *program) netlink(name string, link nsinit.Arg, message []byte, ignore []syscall.Errno) {
	p.add(name, unix.SYS_SENDTO, link, nsinit.Bytes(message), nsinit.Int(len(message)), nsinit.Int(0), nsinit.Int(0), nsinit.Int(0)).Ignore = ignore
	c := p.add(name, unix.SYS_RECVFROM, link, nsinit.Out(256), nsinit.Int(256), nsinit.Int(0), nsinit.Int(0), nsinit.Int(0))
	c.Ignore = ignore
	c.ExpectAt = unix.SizeofNlMsghdr // struct nlmsgerr of netlink(7): the error, zero for none
	c.Expect = make([]byte, 4)
}

// listen makes one listener. Its register, zero for a new one, is used again for
// the next: there are more listeners than registers.
func (p *program) listen(l wantedListener, reg int, ignore []syscall.Errno) int {
	name := "listen on " + l.name
	step := func(nr int, args ...nsinit.Arg) { p.add(name, nr, args...).Ignore = ignore }
	step(unix.SYS_SOCKET, nsinit.Int(l.family), nsinit.Int(l.kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK), nsinit.Int(0))
	if reg == 0 {
		p.store()
		reg = p.reg
	}
	p.calls[len(p.calls)-1].Store = reg
	fd := nsinit.Reg(reg)
	if l.family == unix.AF_INET6 {
		step(unix.SYS_SETSOCKOPT, fd, nsinit.Int(unix.IPPROTO_IPV6), nsinit.Int(unix.IPV6_V6ONLY), nsinit.Bytes(binary.NativeEndian.AppendUint32(nil, 1)), nsinit.Int(4))
	}
	addr := sockaddr(l.at)
	// Without SO_REUSEADDR nobody inside can listen on a part of what this has.
	step(unix.SYS_BIND, fd, nsinit.Bytes(addr), nsinit.Int(len(addr)))
	if l.kind == unix.SOCK_STREAM {
		step(unix.SYS_LISTEN, fd, nsinit.Int(netBacklog))
	}
	return reg
}

const (
	// netBacklog bounds connections that wait for being accepted.
	netBacklog = 128

	// keptPrefix marks the names of listeners among the files of init.
	keptPrefix = "net "
)

// sockaddr is struct sockaddr_in of ip(7), or sockaddr_in6 of ipv6(7).
func sockaddr(at netip.AddrPort) []byte {
	var b []byte
	if at.Addr().Is4() {
		b = binary.NativeEndian.AppendUint16(b, unix.AF_INET)
		b = binary.BigEndian.AppendUint16(b, at.Port())
		b = append(b, at.Addr().AsSlice()...)
		return append(b, make([]byte, 8)...)
	}
	b = binary.NativeEndian.AppendUint16(b, unix.AF_INET6)
	b = binary.BigEndian.AppendUint16(b, at.Port())
	b = append(b, make([]byte, 4)...)
	b = append(b, at.Addr().AsSlice()...)
	return append(b, make([]byte, 4)...)
}

// loopbackIndex is that of lo, the first device of every network namespace.
const loopbackIndex = 1

// newAddress is a message of rtnetlink(7): struct ifaddrmsg and its attributes.
func newAddress(p netip.Prefix) []byte {
	body := []byte{familyOf(p.Addr()), byte(p.Bits()), unix.IFA_F_PERMANENT | unix.IFA_F_NODAD, unix.RT_SCOPE_HOST}
	body = binary.NativeEndian.AppendUint32(body, loopbackIndex)
	body = attribute(body, unix.IFA_LOCAL, p.Addr().AsSlice())
	body = attribute(body, unix.IFA_ADDRESS, p.Addr().AsSlice())
	return netlinkMessage(unix.RTM_NEWADDR, body)
}

// newLocalRoute is a message of rtnetlink(7): struct rtmsg and its attributes.
func newLocalRoute(p netip.Prefix) []byte {
	scope := byte(unix.RT_SCOPE_HOST)
	if p.Addr().Is6() {
		scope = unix.RT_SCOPE_UNIVERSE
	}
	body := []byte{familyOf(p.Addr()), byte(p.Bits()), 0, 0, unix.RT_TABLE_LOCAL, unix.RTPROT_BOOT, scope, unix.RTN_LOCAL, 0, 0, 0, 0}
	body = attribute(body, unix.RTA_DST, p.Addr().AsSlice())
	body = attribute(body, unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, loopbackIndex))
	return netlinkMessage(unix.RTM_NEWROUTE, body)
}

func familyOf(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func attribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	return append(b, value...) // all are multiples of four bytes
}

func netlinkMessage(kind uint16, body []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE)
	b = append(b, make([]byte, 8)...) // sequence number, port of the sender
	return append(b, body...)
}

// environment adds variables that many programs obey to env, which may be nil.
// They are a convenience: what can be reached does not depend on them. A nil
// plan adds nothing.
func (n *netPlan) environment(env map[string]string) map[string]string {
	if n == nil {
		return env
	}
	// HTTP for everything: clients without a library for SOCKS fail at a socks5
	// address although they would not use it.
	url := "http://127.0.0.1:" + strconv.Itoa(int(n.proxy))
	none := "localhost,127.0.0.1,::1"
	out := map[string]string{
		"HTTP_PROXY": url, "HTTPS_PROXY": url, "ALL_PROXY": url, "NO_PROXY": none,
		"http_proxy": url, "https_proxy": url, "all_proxy": url, "no_proxy": none,
		"NODE_USE_ENV_PROXY": "1",
	}
	maps.Copy(out, env)
	return out
}
