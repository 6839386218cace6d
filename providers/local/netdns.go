//go:build linux

package local

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/agent-sandbox/sandbox-go/internal/netrule"
	"github.com/agent-sandbox/sandbox-go/providers"
)

// Questions of the sandbox are answered here and never passed on: what a rule
// permits has an address of the blocks, anything else does not exist. A name in
// a question leads nothing out.

const (
	dnsTTL      = 60   // seconds
	dnsQuestion = 4096 // bytes of a question that are read; more is malformed
	dnsPerConn  = 64   // questions on one TCP connection
	dnsIdle     = 10 * time.Second
)

// errNoDNS says that a message is not to be answered at all.
var errNoDNS = errors.New("no question")

// answerDNS returns the answer to a question.
func (e *egress) answerDNS(question []byte) ([]byte, error) {
	var p dnsmessage.Parser
	h, err := p.Start(question)
	if err != nil || h.Response {
		return nil, errNoDNS
	}
	head := dnsmessage.Header{ID: h.ID, Response: true, OpCode: h.OpCode, RecursionDesired: h.RecursionDesired, RecursionAvailable: true}
	fail := func(code dnsmessage.RCode, qs ...dnsmessage.Question) ([]byte, error) {
		head.RCode = code
		m := dnsmessage.Message{Header: head, Questions: qs}
		return m.Pack()
	}
	if h.OpCode != 0 {
		return fail(dnsmessage.RCodeNotImplemented)
	}
	q, err := p.Question()
	if err != nil {
		return fail(dnsmessage.RCodeFormatError)
	}
	if _, err := p.Question(); err != dnsmessage.ErrSectionDone {
		return fail(dnsmessage.RCodeFormatError)
	}
	if q.Class != dnsmessage.ClassINET {
		return fail(dnsmessage.RCodeRefused, q)
	}
	asked := strings.TrimSuffix(q.Name.String(), ".")
	if l := strings.ToLower(asked); l == "localhost" || strings.HasSuffix(l, ".localhost") { // RFC 6761
		return dnsAnswer(head, q, netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback())
	}
	event := providers.NetworkEvent{Kind: "dns", Host: asked}
	name, err := netrule.Name(asked)
	rule, permitted := netrule.Rule{}, false
	if err == nil {
		rule, permitted = e.rules.AnyPort(name)
	}
	if !permitted {
		event.Reason = missingRule(asked)
		e.audit.note(event)
		return fail(dnsmessage.RCodeNameError, q)
	}
	v4, v6, first, err := e.names.address(name)
	if err != nil {
		event.Reason = err.Error()
		e.audit.note(event)
		return fail(dnsmessage.RCodeServerFailure, q)
	}
	if first {
		event.Allowed, event.Rule, event.Address = true, rule.String(), v4.String()
		e.audit.note(event)
	}
	if !e.has6 {
		v6 = netip.Addr{}
	}
	return dnsAnswer(head, q, v4, v6)
}

// dnsAnswer packs an answer with the address that q asks for. Other types than
// addresses have none, which is not the same as that there is no such name.
func dnsAnswer(head dnsmessage.Header, q dnsmessage.Question, v4, v6 netip.Addr) ([]byte, error) {
	m := dnsmessage.Message{Header: head, Questions: []dnsmessage.Question{q}}
	rh := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: dnsTTL}
	switch {
	case q.Type == dnsmessage.TypeA:
		m.Answers = []dnsmessage.Resource{{Header: rh, Body: &dnsmessage.AResource{A: v4.As4()}}}
	case q.Type == dnsmessage.TypeAAAA && v6.IsValid():
		m.Answers = []dnsmessage.Resource{{Header: rh, Body: &dnsmessage.AAAAResource{AAAA: v6.As16()}}}
	}
	return m.Pack()
}

// serveUDP answers questions until the socket is closed.
func (e *egress) serveUDP(c net.PacketConn) {
	serveQuestions(c, e.pause, func(q []byte) []byte {
		answer, err := e.answerDNS(q)
		if err != nil {
			return nil
		}
		return answer
	})
}

// serveQuestions answers messages of DNS until c fails and again says no; an answer
// that is empty is none.
func serveQuestions(c net.PacketConn, again func(error) bool, answer func(q []byte) []byte) {
	b := make([]byte, dnsQuestion+1)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			if again(err) {
				continue
			}
			return
		}
		if n > dnsQuestion {
			continue
		}
		if a := answer(b[:n]); len(a) > 0 {
			_, _ = c.WriteTo(a, from) // lost, as a datagram may be
		}
	}
}

// serveDNS answers questions on a connection.
func (e *egress) serveDNS(c net.Conn) {
	var b [2 + dnsQuestion]byte
	for range dnsPerConn {
		c.SetDeadline(time.Now().Add(dnsIdle))
		if _, err := io.ReadFull(c, b[:2]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(b[:]))
		if n > dnsQuestion {
			return
		}
		if _, err := io.ReadFull(c, b[2:2+n]); err != nil {
			return
		}
		answer, err := e.answerDNS(b[2 : 2+n])
		if err != nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}
