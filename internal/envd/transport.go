package envd

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"time"
)

// transport adds to every request what the endpoint asks for. HTTP/1.1 is all
// that envd speaks in clear text, so each open stream holds a connection of its
// own; there is no bound on those, only on idle ones.
type transport struct {
	base    *http.Transport
	dialer  *net.Dialer
	headers http.Header
	user    *url.Userinfo // of the address; nil: none
	token   string
	dial    func(ctx context.Context) (net.Conn, error)
}

func newTransport(o *Options, user *url.Userinfo) *transport {
	dialer := &net.Dialer{Timeout: 15 * time.Second}
	t := &transport{dialer: dialer, headers: o.Headers.Clone(), user: user, token: o.Token, dial: o.Dial}
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
	return t.Do(&r)
}

// Do is RoundTrip for a request that belongs to it. An http.Client copies the header
// of each, for redirects, which are not followed here: a small part of the time of
// a request, and a noticeable one of that of a command that ends at once.
func (t *transport) Do(r *http.Request) (*http.Response, error) {
	t.decorate(r.Header)
	if err := inOne(r); err != nil {
		return nil, err
	}
	res, err := t.base.RoundTrip(r)
	return res, trusting(r.URL.Host, err)
}

// smallBody bounds the bodies that inOne copies, in bytes.
const smallBody = 8 << 10

// inOne has the body of r leave together with its header, which net/http does only
// with bodies of types that it knows to be in memory. One that can be had again is
// in memory, too.
func inOne(r *http.Request) error {
	if r.Body == nil || r.GetBody == nil || r.ContentLength <= 0 || r.ContentLength > smallBody {
		return nil
	}
	b := make([]byte, r.ContentLength)
	_, err := io.ReadFull(r.Body, b)
	r.Body.Close()
	if err != nil {
		return fmt.Errorf("body of the request: %w", err)
	}
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
	r.Body, _ = r.GetBody()
	return nil
}

// decorate sets what every request carries.
func (t *transport) decorate(h http.Header) {
	own := h["Authorization"]
	maps.Copy(h, t.headers)
	switch { // the endpoint's is the default
	case own != nil:
		h["Authorization"] = own
	case t.user != nil:
		password, _ := t.user.Password()
		(&http.Request{Header: h}).SetBasicAuth(t.user.Username(), password)
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
