//go:build linux

package local

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

const (
	proxyPatience = 10 * time.Second // for the head of a request
	proxyIdle     = 30 * time.Second // between two requests
	proxyHead     = 64 << 10         // bytes of a head
)

// A proxy serves what programs inside send to the proxy's port: HTTP, with
// CONNECT, and SOCKS 5, told apart by their first byte. It permits what a direct
// connection would be permitted, and says in words what it refuses.
type proxy struct {
	e         *egress
	server    *http.Server
	transport *http.Transport
	conns     chan net.Conn // for server
	done      chan struct{} // closed by close
	once      sync.Once
}

func newProxy(e *egress) *proxy {
	p := &proxy{e: e, conns: make(chan net.Conn), done: make(chan struct{})}
	p.transport = &http.Transport{
		DialContext:        p.dial,
		DisableCompression: true,
		MaxIdleConns:       16, MaxConnsPerHost: maxOutside, IdleConnTimeout: proxyIdle,
		MaxResponseHeaderBytes: 1 << 20,
	}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			// Only who sent a request knows whom it is forwarded for.
			for _, k := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
				if v, ok := r.In.Header[k]; ok {
					r.Out.Header[k] = v
				}
			}
			r.Out.Host = r.In.URL.Host
		},
		Transport:     p.transport,
		FlushInterval: -1,
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, err error) { fail(w, err) },
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	p.server = &http.Server{
		Handler:           p.handler(forward),
		ReadHeaderTimeout: proxyPatience, IdleTimeout: proxyIdle, MaxHeaderBytes: proxyHead,
		BaseContext: func(net.Listener) context.Context { return e.ctx },
		ErrorLog:    log.New(io.Discard, "", 0), // a hostile client can make it say anything
	}
	return p
}

func (p *proxy) serve() { _ = p.server.Serve(p) } // until close

// close ends the server and its connections, but not those that it handed on.
func (p *proxy) close() {
	p.once.Do(func() { close(p.done) })
	p.server.Close()
}

// Accept, Close and Addr make p the listener of its server.
func (p *proxy) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Close does nothing: see close.
func (p *proxy) Close() error { return nil }

// Addr is that of no listener.
func (p *proxy) Addr() net.Addr { return &net.TCPAddr{} }

// take serves a connection to the port of the proxy.
func (p *proxy) take(c *inConn) {
	var first [1]byte
	c.SetReadDeadline(time.Now().Add(proxyPatience))
	if _, err := io.ReadFull(c, first[:]); err != nil {
		c.Close()
		return
	}
	c.SetReadDeadline(time.Time{})
	if first[0] == socks5 || first[0] == socks4 {
		if err := p.socks(c, first[0]); err != nil {
			c.Close()
		}
		return
	}
	select {
	case p.conns <- &proxyConn{inConn: c, first: first[:]}:
	case <-p.done:
		c.Close()
	}
}

// A proxyConn gives back the byte that was read to tell what it is.
type proxyConn struct {
	*inConn
	first []byte
}

// Read reads the first byte again, and then the rest.
func (c *proxyConn) Read(p []byte) (int, error) {
	if len(c.first) > 0 && len(p) > 0 {
		n := copy(p, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.inConn.Read(p)
}

// handler tells CONNECT from requests that are to be forwarded.
func (p *proxy) handler(forward http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !p.e.begin() {
			return
		}
		defer p.e.wg.Done()
		switch {
		case r.Method == http.MethodConnect:
			p.connect(w, r)
		case r.URL.Scheme != "http" || r.URL.Host == "":
			http.Error(w, "sandbox: this is a proxy: it takes CONNECT and requests for http://HOST/", http.StatusBadRequest)
		default:
			forward.ServeHTTP(w, r)
		}
	})
}

// fail answers with the reason, which names the rule that is missing.
func fail(w http.ResponseWriter, err error) {
	status := http.StatusBadGateway
	if _, ok := errors.AsType[*refusal](err); ok {
		status = http.StatusForbidden
	}
	http.Error(w, "sandbox: "+err.Error(), status)
}

// dial connects for a request that is forwarded.
func (p *proxy) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	t, err := p.e.readTarget("proxy", addr)
	if err != nil {
		return nil, err
	}
	return asConn(p.e.connect(ctx, "proxy", t))
}

func asConn(c *outConn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (p *proxy) connect(w http.ResponseWriter, r *http.Request) {
	t, err := p.e.readTarget("proxy", r.Host)
	var out *outConn
	if err == nil {
		out, err = p.e.connect(r.Context(), "proxy", t)
	}
	if err != nil {
		fail(w, err)
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		out.Close()
		return
	}
	conn.SetDeadline(time.Time{})
	first := make([]byte, rw.Reader.Buffered())
	_, err = io.ReadFull(rw.Reader, first)
	if err == nil {
		_, err = io.WriteString(conn, "HTTP/1.1 200 Connection established\r\n\r\n")
	}
	c, ok := conn.(*proxyConn)
	if err != nil || !ok {
		conn.Close()
		out.Close()
		return
	}
	p.e.relay(c.inConn, out, t, first)
}

// readTarget reads HOST:PORT and notes what is neither a name nor an address.
func (e *egress) readTarget(kind, hostport string) (netTarget, error) {
	host, port, err := net.SplitHostPort(hostport)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil || n == 0 {
		return netTarget{}, &refusal{fmt.Sprintf("%q is not HOST:PORT", clipTo(hostport, 255))}
	}
	t, err := e.parseTarget(host, uint16(n))
	if err != nil {
		e.audit.note(deniedEvent(kind, host, int(n), err))
	}
	return t, err
}

// SOCKS, RFC 1928.
const (
	socks4 = 4
	socks5 = 5

	socksConnect = 1

	socksFailed     = 1
	socksForbidden  = 2
	socksUnreached  = 4
	socksBadCommand = 7
	socksBadAddress = 8
)

// socks serves a client of SOCKS 5, whose first byte was read. An error means
// that the connection is to be closed.
func (p *proxy) socks(c *inConn, version byte) error {
	if version != socks5 {
		return errSocks
	}
	c.SetDeadline(time.Now().Add(proxyPatience))
	t, err := p.socksRequest(c)
	if err != nil {
		return err
	}
	c.SetDeadline(time.Time{})
	out, err := p.e.connect(p.e.ctx, "socks", t)
	if err != nil {
		code := byte(socksUnreached)
		if _, ok := errors.AsType[*refusal](err); ok {
			code = socksForbidden
		}
		socksReply(c, code)
		return err
	}
	if err := socksReply(c, 0); err != nil {
		out.Close()
		return err
	}
	p.e.relay(c, out, t, nil)
	return nil
}

var errSocks = errors.New("not a request of SOCKS 5")

// socksReply answers a request; the address that it holds is of no use.
func socksReply(c net.Conn, code byte) error {
	c.SetWriteDeadline(time.Now().Add(proxyPatience))
	defer c.SetWriteDeadline(time.Time{})
	_, err := c.Write([]byte{socks5, code, 0, 1, 0, 0, 0, 0, 0, 0})
	return err
}

// socksRequest reads what a client wants, up to the last byte of it and no
// further.
func (p *proxy) socksRequest(c net.Conn) (netTarget, error) {
	host, port, code, err := readSocks(c)
	if err != nil {
		if code != 0 {
			socksReply(c, code)
		}
		return netTarget{}, err
	}
	t, err := p.e.parseTarget(host, port)
	if err != nil {
		p.e.audit.note(deniedEvent("socks", host, int(port), err))
		socksReply(c, socksForbidden)
	}
	return t, err
}

// readSocks does the part of the protocol up to the request. After an error a
// code other than zero is to be answered.
func readSocks(c io.ReadWriter) (host string, port uint16, code byte, err error) {
	var b [257]byte
	read := func(n int) []byte {
		if err == nil {
			_, err = io.ReadFull(c, b[:n])
		}
		return b[:n]
	}
	methods := read(int(read(1)[0]))
	if err != nil {
		return "", 0, 0, err
	}
	if !bytes.Contains(methods, []byte{0}) { // no authentication
		_, _ = c.Write([]byte{socks5, 0xff})
		return "", 0, 0, errSocks
	}
	if _, err := c.Write([]byte{socks5, 0}); err != nil {
		return "", 0, 0, err
	}
	head := read(4)
	if err != nil {
		return "", 0, 0, err
	}
	switch {
	case head[0] != socks5:
		return "", 0, socksFailed, errSocks
	case head[1] != socksConnect:
		return "", 0, socksBadCommand, errSocks
	}
	switch head[3] {
	case 1:
		host = netip.AddrFrom4([4]byte(read(4))).String()
	case 4:
		host = netip.AddrFrom16([16]byte(read(16))).String()
	case 3:
		host = string(read(int(read(1)[0])))
	default:
		return "", 0, socksBadAddress, errSocks
	}
	port = binary.BigEndian.Uint16(read(2))
	if err == nil && (host == "" || port == 0) {
		return "", 0, socksFailed, errSocks
	}
	return host, port, 0, err
}
