//go:build linux

package local

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/agent-sandbox/sandbox-go/providers"
)

// TestNetworkTricks has hostile code, as each user, try to reach more than its
// rules permit. What must not be reached listens on this machine's loopback,
// where the names lead; the names are known to the lookup of this test only.
func TestNetworkTricks(t *testing.T) {
	bothEngines(t, map[string][]string{
		"rebind.test":  {"127.0.0.1", "10.0.0.1"},
		"meta.test":    {"169.254.169.254"},
		"mapped.test":  {"::ffff:127.0.0.1"},
		"nat64.test":   {"64:ff9b::7f00:1"},
		"private.test": {"192.168.1.1", "fd00::1"},
		"zero.test":    {"0.0.0.0"},
	}, networkTricks)
}

func networkTricks(t *testing.T, w *netWorld) {
	secret := portOf(t, w.secret)
	rules := []string{"good.test:PORT", "*.wild.test:PORT", "8.8.8.0/24:PORT"}
	for _, name := range []string{"rebind", "meta", "mapped", "nat64", "private", "zero"} {
		rules = append(rules, fmt.Sprintf("%s.test:PORT", name), fmt.Sprintf("%s.test:%d", name, secret))
	}
	sb := w.sandbox(t, rules...)
	who, how := users(), "all"
	if w.guest { // what only the client sees is the same
		who, how = who[len(who)-1:], "brief"
	}
	for _, user := range who {
		if out := play(t, sb, user, "net tricks", strconv.Itoa(w.port), strconv.Itoa(secret), how); out != "done\n" {
			t.Errorf("%s: %s", user, out)
		}
	}
	events, err := w.p.NetworkLog(t.Context(), sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.Allowed && (strings.HasSuffix(e.Address, ":"+strconv.Itoa(secret)) || e.Kind != "dns" && e.Host != "good.test" && e.Host != "x.wild.test" && e.Host != "8.8.8.8") {
			t.Errorf("allowed: %+v", e)
		}
	}
	for _, want := range []providers.NetworkEvent{
		{Kind: "dns", Host: "evil.test"}, {Kind: "dns", Host: "good.test", Allowed: true}, {Kind: "connect", Host: "good.test", Allowed: true},
		{Kind: "connect", Host: "rebind.test"}, {Kind: "proxy", Host: "evil.test"}, {Kind: "socks", Host: "evil.test"}, {Kind: "name", Host: "good.test"},
	} {
		if !slices.ContainsFunc(events, func(e providers.NetworkEvent) bool {
			return e.Kind == want.Kind && e.Host == want.Host && e.Allowed == want.Allowed && (e.Allowed == (e.Rule != "" && e.Address != "")) && (e.Allowed || e.Reason != "")
		}) {
			t.Errorf("no event %+v among %d", want, len(events))
		}
	}
}

// A tricker is the hostile code.
type tricker struct {
	attacker
	good, secret int  // ports
	brief        bool // leave out what takes long
}

func init() {
	roles["net tricks"] = func() error {
		args := strings.Split(os.Getenv(envArgs), "\n")
		k := &tricker{brief: args[2] == "brief"}
		k.good, _ = strconv.Atoi(args[0])
		k.secret, _ = strconv.Atoi(args[1])
		k.direct()
		k.proxies()
		k.names()
		k.questions()
		if !k.brief {
			k.spellings() // more than the log takes
		}
		fmt.Println("done")
		return nil
	}
}

// get asks over a connection to an address, and returns the answer.
func (k *tricker) get(addr, request string) (string, error) {
	c, err := net.DialTimeout("tcp", addr, 20*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return exchange(c, request)
}

func exchange(c net.Conn, request string) (string, error) {
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, request); err != nil {
		return "", err
	}
	b, err := io.ReadAll(io.LimitReader(c, 1<<16))
	return string(b), err
}

func requestFor(host string) string {
	return "GET / HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"
}

func (k *tricker) at(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

func (k *tricker) direct() {
	if out, err := k.get(k.at("good.test", k.good), requestFor("good.test")); !strings.Contains(out, goodText) {
		k.breach("the permitted name cannot be reached: %q, %v", out, err)
	}
	// Literal addresses have no route; ports without a rule no listener.
	for _, addr := range []string{"1.1.1.1", "127.0.0.2", "169.254.169.254", "10.0.0.1", "2606:4700::1", "fd00::1"} {
		for _, port := range []int{k.good, k.secret, 80, 53} {
			start := time.Now()
			out, err := k.get(k.at(addr, port), requestFor("good.test"))
			if err == nil && out != "" {
				k.breach("%s answers %q", k.at(addr, port), out)
			}
			if time.Since(start) > 15*time.Second { // less than it would be waited for
				k.breach("%s takes %v to fail", addr, time.Since(start))
			}
		}
	}
	_, err := net.DialTimeout("tcp", k.at("1.1.1.1", k.good), 20*time.Second)
	k.refused("a literal address", err, syscall.ENETUNREACH)
	_, err = net.DialTimeout("tcp", k.at("good.test", 4321), 20*time.Second)
	k.refused("a port without a rule", err, syscall.ECONNREFUSED)
	_, err = net.DialTimeout("tcp", k.at("good.test", 80), 20*time.Second)
	k.refused("a port without a rule", err, syscall.ECONNREFUSED)
	for _, addr := range []string{k.at("198.18.255.255", k.good), k.at("198.18.0.1", k.good), k.at("127.0.0.1", k.good)} {
		if out, err := k.get(addr, requestFor("good.test")); err == nil || out != "" {
			k.breach("%s, which stands for nothing, answers %q", addr, out)
		}
	}
	// UDP fails at once.
	for addr, want := range map[string]error{"1.1.1.1:443": syscall.ENETUNREACH, k.at("good.test", k.good): syscall.ECONNREFUSED} {
		c, err := net.Dial("udp", addr)
		if err == nil {
			c.SetDeadline(time.Now().Add(3 * time.Second))
			c.Write([]byte("x"))
			_, err = c.Read(make([]byte, 1))
			c.Close()
		}
		k.refused("UDP to "+addr, err, want)
	}
	// Nobody takes the place of the listeners.
	for _, addr := range []string{k.at("198.18.0.2", k.good), k.at("0.0.0.0", k.good), "127.0.0.1:53", "0.0.0.0:53", "127.0.0.1:3128"} {
		l, err := net.Listen("tcp", addr)
		if err == nil {
			l.Close()
			k.breach("listens on %s", addr)
		}
	}
	// Names whose addresses are not of the internet.
	for _, name := range []string{"rebind.test", "meta.test", "mapped.test", "nat64.test", "private.test", "zero.test"} {
		for _, port := range []int{k.good, k.secret} {
			if out, err := k.get(k.at(name, port), requestFor(name)); err == nil && out != "" {
				k.breach("%s leads to a private address: %q", name, out)
			}
		}
	}
}

// loopbacks are spellings of 127.0.0.1 and of the address of metadata services.
var loopbacks = []string{
	"127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001", "127.0.0.1.", "127.000.000.001", "0",
	"0.0.0.0", "localhost", "LOCALHOST.", "a.localhost", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::127.0.0.1]", "[2002:7f00:1::]", "[fe80::1%25lo]", "[::1%lo]",
	"169.254.169.254", "2852039166", "[::ffff:169.254.169.254]", "[fd00:ec2::254]", "metadata.google.internal", "１２７.0.0.1", "127。0。0。1",
	"good.test@127.0.0.1", "127.0.0.1#good.test", "127.0.0.1/good.test", "127.0.0.1%00.good.test", "good.test\x00.evil", "rebind.test", "mapped.test", "nat64.test", "zero.test", "evil.test", "xgood.test", "good.test.evil.test", "",
}

const proxyPort = 3128

// spellings goes through the proxy in every way to what is not permitted.
func (k *tricker) spellings() {
	proxy := k.at("127.0.0.1", proxyPort)
	for _, host := range loopbacks {
		for _, port := range []int{k.secret, k.good, proxyPort, 53, 80} {
			target := host + ":" + strconv.Itoa(port)
			out, _ := k.get(proxy, "CONNECT "+target+" HTTP/1.1\r\nHost: "+target+"\r\n\r\n"+requestFor("good.test"))
			if strings.Contains(out, "200 Connection") || strings.Contains(out, goodText) || strings.Contains(out, secretText) {
				k.breach("CONNECT %q: %q", target, out)
			}
			if strings.ContainsAny(host, "\x00") {
				continue
			}
			out, _ = k.get(proxy, "GET http://"+target+"/ HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n")
			if strings.Contains(out, goodText) || strings.Contains(out, secretText) || strings.HasPrefix(out, "HTTP/1.1 2") {
				k.breach("GET http://%s/: %q", target, out)
			}
		}
		if code, out := k.socks(host, k.secret); code == 0 {
			k.breach("SOCKS to %q: %q", host, out)
		}
	}
}

// socks asks for a host by name and, where it is one, by address.
func (k *tricker) socks(host string, port int) (code byte, out string) {
	c, err := net.Dial("tcp", k.at("127.0.0.1", proxyPort))
	if err != nil {
		k.breach("no proxy: %v", err)
		return 1, ""
	}
	defer c.Close()
	host = strings.Trim(host, "[]")
	req := append([]byte{5, 1, 0, 5, 1, 0}, 3, byte(len(host)))
	if ip := net.ParseIP(host); ip != nil {
		req = append([]byte{5, 1, 0, 5, 1, 0}, 4)
		req = append(req, ip.To16()...)
	} else {
		req = append(req, host...)
	}
	req = binary.BigEndian.AppendUint16(req, uint16(port))
	c.SetDeadline(time.Now().Add(10 * time.Second))
	c.Write(req)
	var head [12]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return 1, ""
	}
	if head[3] != 0 {
		return head[3], ""
	}
	out, _ = exchange(c, requestFor("good.test"))
	return 0, out
}

// proxies uses the proxy as it is meant, and in ways that it is not.
func (k *tricker) proxies() {
	proxy := k.at("127.0.0.1", proxyPort)
	good := k.at("good.test", k.good)
	if out, err := k.get(proxy, "CONNECT "+good+" HTTP/1.1\r\nHost: "+good+"\r\n\r\n"+requestFor("good.test")); !strings.Contains(out, goodText) {
		k.breach("CONNECT to the permitted name: %q, %v", out, err)
	}
	if out, err := k.get(proxy, "GET http://GOOD.test.:"+strconv.Itoa(k.good)+"/ HTTP/1.1\r\nHost: other.test\r\nConnection: close\r\n\r\n"); !strings.Contains(out, goodText) {
		k.breach("GET of the permitted name: %q, %v", out, err)
	}
	for _, host := range []string{"good.test", "x.wild.test", "198.18.0.2"} {
		if code, out := k.socks(host, k.good); host != "x.wild.test" && (code != 0 || !strings.Contains(out, goodText)) {
			k.breach("SOCKS to %s: %d %q", host, code, out)
		}
	}
	out, _ := k.get(proxy, "CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\nConnection: close\r\n\r\n")
	if !strings.HasPrefix(out, "HTTP/1.1 403") || !strings.Contains(out, `the rule would be "evil.test"`) {
		k.breach("a refusal does not say why: %q", out)
	}
	if code, _ := k.socks("evil.test", 443); code != socksForbidden {
		k.breach("SOCKS refuses with %d", code)
	}
	if k.brief {
		return
	}
	for _, req := range []string{
		requestFor("good.test"), "GET https://good.test/ HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n",
		"CONNECT good.test HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n", "CONNECT :80 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "\x04\x01\x00\x50\x7f\x00\x00\x01\x00", "\x05\x01\x02", "\x05\x01\x00\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x50",
		"\x05\x01\x00\x05\x03\x00\x01\x00\x00\x00\x00\x00\x00", "GET " + strings.Repeat("/", 100<<10) + " HTTP/1.1\r\n\r\n", "\x16\x03\x01\x00\x05hello",
	} {
		if out, _ := k.get(proxy, req); strings.HasPrefix(out, "HTTP/1.1 2") || strings.Contains(out, secretText) || strings.Contains(out, goodText) {
			k.breach("the proxy takes %.40q: %q", req, out)
		}
	}
}

// names says another name than the one it was let out for.
func (k *tricker) names() {
	good := k.at("good.test", k.good)
	for _, req := range []string{
		requestFor("evil.test"), requestFor("evil.test:80"), requestFor("good.test@evil.test"), requestFor("127.0.0.1"), requestFor(""),
		"GET / HTTP/1.1\r\nHost: good.test\r\nHost: evil.test\r\n\r\n", "GET / HTTP/1.1\r\nhost : evil.test\r\n\r\n", "GET / HTTP/1.1\r\nHOST:\r\n evil.test\r\n\r\n",
		"\r\n\r\nGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", "get / http/1.0\r\nhost: evil.test\r\n\r\n", "BREW / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"GET http://evil.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n", "GET / HTTP/1.1\nHost: evil.test\n\n",
	} {
		if out, _ := k.get(good, req); strings.Contains(out, goodText) || !strings.Contains(out, "on a connection to good.test") && !strings.HasPrefix(out, "HTTP/1.1 4") {
			k.breach("%q is let through: %q", req, out)
		}
	}
	// In pieces, too.
	c, err := net.Dial("tcp", good)
	if err == nil {
		for _, piece := range []string{"GE", "T / HT", "TP/1.1\r\nHo", "st: evil", ".test\r", "\n\r\n"} {
			io.WriteString(c, piece)
			time.Sleep(20 * time.Millisecond)
		}
		if out, _ := exchange(c, ""); strings.Contains(out, goodText) {
			k.breach("a request in pieces is let through: %q", out)
		}
		c.Close()
	}
	for name, want := range map[string]bool{"evil.test": false, "good.test": true, "": true} {
		c, err := net.Dial("tcp", good)
		if err != nil {
			k.breach("%v", err)
			continue
		}
		c.SetDeadline(time.Now().Add(10 * time.Second))
		err = tls.Client(c, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
		c.Close()
		// The server has no TLS and says so in HTTP; the refusal is a reset.
		var record tls.RecordHeaderError
		if reached := errors.As(err, &record); reached != want {
			k.breach("TLS for %q on a connection to good.test: %v", name, err)
		}
	}
}

// questions asks the server of names for more than it should know.
func (k *tricker) questions() {
	secret := base64.RawURLEncoding.EncodeToString([]byte("a secret that must not get out"))
	for _, name := range []string{secret + ".evil.test.", secret + ".good.test.", "evil.test.", "test.", ".", "wild.test.", "8.8.8.8.in-addr.arpa.", "*.wild.test."} {
		for _, network := range []string{"udp", "tcp"} {
			m, err := ask(network, question(name, dnsmessage.TypeA))
			if err != nil || m.RCode != dnsmessage.RCodeNameError || len(m.Answers) != 0 {
				k.breach("%s %s: %+v, %v", network, name, m, err)
			}
		}
	}
	first := ""
	for _, name := range []string{"good.test.", "GooD.TEST."} {
		m, err := ask("udp", question(name, dnsmessage.TypeA))
		if err != nil || len(m.Answers) != 1 || m.Answers[0].Header.TTL != 60 {
			k.breach("%s: %+v, %v", name, m, err)
			continue
		}
		if a := fmt.Sprint(m.Answers[0].Body); first == "" {
			first = a
		} else if first != a {
			k.breach("the address of %s is not the same: %s, %s", name, first, a)
		}
	}
	for _, typ := range []dnsmessage.Type{dnsmessage.TypeTXT, dnsmessage.TypeMX, dnsmessage.TypeNS, dnsmessage.TypeALL, 65} {
		if m, err := ask("tcp", question("good.test.", typ)); err != nil || m.RCode != 0 || len(m.Answers) != 0 {
			k.breach("%v: %+v, %v", typ, m, err)
		}
	}
	chaos := question("version.bind.", dnsmessage.TypeTXT)
	chaos[len(chaos)-1] = 3
	if m, err := ask("udp", chaos); err != nil || m.RCode != dnsmessage.RCodeRefused {
		k.breach("CHAOS: %+v, %v", m, err)
	}
	update := question("good.test.", dnsmessage.TypeA)
	update[2] = 5 << 3
	if m, err := ask("udp", update); err != nil || m.RCode != dnsmessage.RCodeNotImplemented {
		k.breach("update: %+v, %v", m, err)
	}
	// Nonsense, then a question: it still answers.
	c, err := net.Dial("udp", "127.0.0.1:53")
	if err != nil {
		k.breach("%v", err)
		return
	}
	defer c.Close()
	for n := range 200 {
		c.Write(make([]byte, n*300))
		c.Write([]byte(strings.Repeat("\xc0\x0c", n)))
	}
	if t, err := net.Dial("tcp", "127.0.0.1:53"); err == nil {
		t.Write(append([]byte{0xff, 0xff}, make([]byte, 100<<10)...))
		t.Close()
	}
	// While the nonsense fills the socket a question may be lost: it is asked again.
	var m dnsmessage.Message
	for range 5 {
		if m, err = ask("udp", question("good.test.", dnsmessage.TypeAAAA)); err == nil {
			break
		}
	}
	if err != nil || m.RCode != 0 {
		k.breach("after nonsense: %+v, %v", m, err)
	}
}

func question(name string, typ dnsmessage.Type) []byte {
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: typ, Class: dnsmessage.ClassINET}}}
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

func ask(network string, q []byte) (m dnsmessage.Message, err error) {
	c, err := net.Dial(network, "127.0.0.1:53")
	if err != nil {
		return m, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	b := make([]byte, 4096)
	n := 0
	if network == "udp" {
		c.Write(q)
		n, err = c.Read(b)
	} else {
		c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...))
		r := bufio.NewReader(c)
		if _, err = io.ReadFull(r, b[:2]); err == nil {
			n = int(binary.BigEndian.Uint16(b))
			_, err = io.ReadFull(r, b[:n])
		}
	}
	if err != nil {
		return m, err
	}
	return m, m.Unpack(b[:n])
}
