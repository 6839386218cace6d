package e2bcloud

import (
	"bytes"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
)

// data carries a request to the runtime of a sandbox, or to another port of it.
func (c *Cloud) data(w http.ResponseWriter, r *http.Request) {
	how := c.behaviour()
	if r.Header.Get("X-API-KEY") != "" {
		fail(w, http.StatusBadRequest, "the key of the account came to the data plane")
		return
	}
	if how.NeverReady {
		fail(w, http.StatusBadGateway, "the sandbox was not found")
		return
	}
	if how.Data != nil && how.Data(w, r) {
		return
	}
	b := c.find(r.Header.Get(api.HeaderSandboxID))
	port, err := strconv.Atoi(r.Header.Get(api.HeaderSandboxPort))
	switch {
	case err != nil:
		fail(w, http.StatusBadRequest, "missing header "+api.HeaderSandboxPort)
		return
	case b == nil:
		fail(w, http.StatusBadGateway, "the sandbox was not found")
		return
	case port == api.EnvdPort:
		if !c.allowed(w, r, b, how) {
			return
		}
	}
	sb, err := c.provider.Get(r.Context(), b.inner)
	if err != nil || sb.State != providers.StateRunning {
		fail(w, http.StatusBadGateway, "the sandbox is not running")
		return
	}
	e := sb.Data
	if port != api.EnvdPort {
		exposer, ok := c.provider.(providers.PortExposer)
		if !ok {
			fail(w, http.StatusBadGateway, "the port is not open")
			return
		}
		if e, err = exposer.Port(r.Context(), b.inner, port); err != nil {
			fail(w, http.StatusBadGateway, "the port is not open")
			return
		}
	}
	forward(w, r, e, port)
}

// allowed checks what Alibaba's gateway wants, and what its envd lacks. It has
// answered when it returns false.
func (c *Cloud) allowed(w http.ResponseWriter, r *http.Request, b *box, how Behaviour) bool {
	if !how.FewHeaders && r.URL.Path != "/health" && !strings.HasPrefix(r.Header.Get("Authorization"), "Basic ") {
		fail(w, http.StatusBadRequest, "missing header Authorization")
		return false
	}
	signed := r.URL.Path == "/files" && r.URL.Query().Has("signature")
	token := r.Header.Get(api.HeaderAccessToken)
	if r.URL.Path != "/health" && !signed && subtle.ConstantTimeCompare([]byte(token), []byte(b.token)) == 0 {
		fail(w, http.StatusUnauthorized, "unauthorized access")
		return false
	}
	if strings.HasPrefix(r.URL.Path, "/sandbox/") {
		http.NotFound(w, r)
		return false
	}
	if how.Missing != "" && strings.HasSuffix(r.URL.Path, "/Start") {
		head, err := io.ReadAll(io.LimitReader(r.Body, 64<<10))
		if err != nil {
			fail(w, http.StatusBadRequest, err.Error())
			return false
		}
		if bytes.Contains(head, []byte(how.Missing)) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprintf(w, "fork/exec %s: no such file or directory", how.Missing)
			return false
		}
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(head), r.Body), r.Body}
	}
	return true
}

// forward passes a request on, unbuffered both ways.
func forward(w http.ResponseWriter, r *http.Request, e providers.Endpoint, port int) {
	http.NewResponseController(w).EnableFullDuplex() // not every writer can; then streams are one-way
	t := &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return e.Dial(ctx) }}
	defer t.CloseIdleConnections()
	p := &httputil.ReverseProxy{
		Transport:     t,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL.Scheme, pr.Out.URL.Host = "http", "sandbox"
			pr.Out.Header.Del(api.HeaderSandboxID)
			pr.Out.Header.Del(api.HeaderSandboxPort)
			if port == api.EnvdPort {
				pr.Out.Header.Set(api.HeaderAccessToken, e.Token.Reveal())
				// The user that the header names is not in every image.
				if pr.In.Header.Get("Authorization") == "Basic dXNlcjo=" {
					pr.Out.Header.Del("Authorization")
				}
			}
		},
		ModifyResponse: func(res *http.Response) error {
			res.Header.Del("Sandbox-Features")
			res.Header.Del("Sandbox-Error-Code")
			if res.Request.ContentLength < 0 && res.StatusCode != http.StatusSwitchingProtocols {
				// The answer may come before the end of the body, whose reader then
				// gets in the way of the next request on this connection.
				res.Header.Set("Connection", "close")
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if !errors.Is(err, context.Canceled) {
				fail(w, http.StatusBadGateway, "the port is not open")
			}
		},
	}
	p.ServeHTTP(w, r)
}
