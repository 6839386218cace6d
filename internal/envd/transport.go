package envd

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"time"
)

// transport adds to every request what the endpoint asks for. HTTP/1.1 is all
// that envd speaks in clear text, so each open stream holds a connection of its
// own; there is no bound on those, only on idle ones.
type transport struct {
	base    *http.Transport
	dialer  *net.Dialer
	headers http.Header
	token   string
	dial    func(ctx context.Context) (net.Conn, error)
}

func newTransport(o *Options) *transport {
	dialer := &net.Dialer{Timeout: 15 * time.Second}
	t := &transport{dialer: dialer, headers: o.Headers.Clone(), token: o.Token, dial: o.Dial}
	t.base = &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			var conn net.Conn
			var err error
			if o.Dial != nil {
				conn, err = o.Dial(ctx)
			} else {
				conn, err = dialer.DialContext(ctx, network, addr)
			}
			if err != nil {
				return nil, &dialError{err}
			}
			return conn, nil
		},
		DisableCompression:     true,
		MaxIdleConns:           32,
		MaxIdleConnsPerHost:    32,
		IdleConnTimeout:        20 * time.Second,
		TLSHandshakeTimeout:    15 * time.Second,
		MaxResponseHeaderBytes: maxHeader,
		WriteBufferSize:        64 << 10,
		ReadBufferSize:         64 << 10,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.RootCAs},
	}
	if o.Dial != nil {
		t.base.Proxy = nil
	}
	return t
}

// RoundTrip sends a copy of req with the credentials of the endpoint.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	r := *req
	r.Header = req.Header.Clone()
	t.decorate(r.Header)
	res, err := t.base.RoundTrip(&r)
	return res, trusting(r.URL.Host, err)
}

// decorate sets what every request carries.
func (t *transport) decorate(h http.Header) {
	user := h["Authorization"]
	maps.Copy(h, t.headers)
	if user != nil {
		h["Authorization"] = user // the endpoint's is the default
	}
	if t.token != "" {
		h.Set("X-Access-Token", t.token)
	}
	// Compressed answers cost more than they save next to a sandbox, and some
	// servers compress large files a hundred times slower than they send them.
	h.Set("Accept-Encoding", "identity")
}

// dialError marks a failure to connect, as opposed to one on a connection.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// drain reads a little of what is left, so that the connection can be used
// again, and closes the body.
func drain(body io.ReadCloser) {
	io.Copy(io.Discard, io.LimitReader(body, 4<<10))
	body.Close()
}

func isDial(err error) bool {
	_, ok := errors.AsType[*dialError](err)
	return ok
}
