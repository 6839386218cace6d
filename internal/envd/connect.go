package envd

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// connect opens a connection for req alone, on the way that other requests
// take: by Dial or by address, through the proxy of the environment, with TLS
// where the address asks for it.
func (t *transport) connect(ctx context.Context, req *http.Request) (net.Conn, error) {
	conn, err := t.connectPlain(ctx, req)
	if err != nil || req.URL.Scheme != "https" {
		return conn, err
	}
	return t.secure(ctx, conn, req.URL.Hostname())
}

func (t *transport) connectPlain(ctx context.Context, req *http.Request) (net.Conn, error) {
	if t.dial != nil {
		return t.dial(ctx)
	}
	addr := hostPort(req.URL)
	var proxy *url.URL
	if t.base.Proxy != nil {
		var err error
		if proxy, err = t.base.Proxy(req); err != nil {
			return nil, err
		}
	}
	if proxy == nil {
		return t.dialer.DialContext(ctx, "tcp", addr)
	}
	if proxy.Scheme != "http" && proxy.Scheme != "https" {
		return nil, errors.New("no way through a proxy of the kind " + proxy.Scheme)
	}
	conn, err := t.dialer.DialContext(ctx, "tcp", hostPort(proxy))
	if err != nil {
		return nil, err
	}
	if proxy.Scheme == "https" {
		if conn, err = t.secure(ctx, conn, proxy.Hostname()); err != nil {
			return nil, err
		}
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	err = tunnel(conn, proxy, addr)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// secure speaks TLS on conn, which it closes when it fails. HTTP/2 has no
// upgrades, so it is not offered.
func (t *transport) secure(ctx context.Context, conn net.Conn, host string) (net.Conn, error) {
	cfg := t.base.TLSClientConfig.Clone()
	cfg.ServerName = host
	cfg.NextProtos = []string{"http/1.1"}
	sec := tls.Client(conn, cfg)
	ctx, cancel := context.WithTimeout(ctx, t.base.TLSHandshakeTimeout)
	defer cancel()
	if err := sec.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return sec, nil
}

// tunnel asks a proxy to connect to addr.
func tunnel(conn net.Conn, proxy *url.URL, addr string) error {
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: addr}, Host: addr, Header: http.Header{}}
	if u := proxy.User; u != nil {
		password, _ := u.Password()
		req.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+password)))
	}
	if err := req.Write(conn); err != nil {
		return err
	}
	br := bufio.NewReaderSize(io.LimitReader(conn, maxHeader), 4<<10)
	res, err := http.ReadResponse(br, req)
	switch {
	case err != nil:
		return err
	case res.StatusCode != http.StatusOK:
		return errors.New("the proxy answers " + res.Status)
	case br.Buffered() > 0:
		return errors.New("the proxy sent something before it was asked")
	}
	return nil
}

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = "80"
		if u.Scheme == "https" {
			port = "443"
		}
	}
	return net.JoinHostPort(u.Hostname(), port)
}
