package e2b

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// domainOf is the domain of a sandbox, given what an answer says: nothing means
// the configured one. A foreign one would be sent tokens, so it is E8006.
func (p *Provider) domainOf(op, id string, answered *string) (string, error) {
	if answered == nil || *answered == "" || p.opts.sandbox != nil {
		return p.opts.domain, nil
	}
	d := strings.ToLower(strings.TrimSuffix(*answered, "."))
	if own := strings.ToLower(p.opts.domain); isDomain(d) && (d == own || strings.HasSuffix(d, "."+own)) {
		return d, nil
	}
	return "", &errdefs.Error{
		Code: "E8006", Op: op, Message: fmt.Sprintf("the service says that sandbox %s is at %q, which is not below %s", id, clip(*answered), p.opts.domain),
		Suggestion: "set domain to the one that the service uses, if you trust it",
	}
}

// runtime is how the runtime of a sandbox is reached.
func (p *Provider) runtime(id string, f fact) providers.Endpoint {
	e := p.at(id, api.EnvdPort, f)
	if p.opts.sandbox == nil && slices.Contains(p.profile.SharedHosts, f.domain) {
		e.URL = "https://sandbox." + f.domain
	}
	e.Token = f.token
	if p.opts.socket != "" {
		e.Dial = p.dialSocket
	}
	return e
}

// at is a port of a sandbox. The headers say which one, wherever its address
// does not.
func (p *Provider) at(id string, port int, f fact) providers.Endpoint {
	number := strconv.Itoa(port)
	h := p.profile.Headers.Clone()
	if h == nil {
		h = http.Header{}
	}
	h.Set(api.HeaderSandboxID, id)
	h.Set(api.HeaderSandboxPort, number)
	if port != api.EnvdPort && f.traffic != "" {
		h.Set(api.HeaderTraffic, f.traffic.Reveal())
	}
	if port != api.EnvdPort {
		h.Del("Authorization") // names a user of the runtime
	}
	u := "https://" + number + "-" + id + "." + f.domain
	if p.opts.sandbox != nil {
		u = p.opts.sandbox.String()
	}
	return providers.Endpoint{URL: u, Headers: h, RootCAs: p.roots}
}

func (p *Provider) dialSocket(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", p.opts.socket)
}

// Port says how to reach a TCP port of a sandbox: HTTP and WebSocket, by
// address. Behind a socket of this machine, which only our gateway has, it is
// the raw connection.
func (p *Provider) Port(ctx context.Context, id string, port int) (providers.Endpoint, error) {
	const op = "expose port"
	done, err := p.begin(ctx, op)
	if err != nil {
		return providers.Endpoint{}, err
	}
	defer done()
	if port < 1 || port > 65535 {
		return providers.Endpoint{}, &errdefs.Error{Code: "E2011", Op: op, Message: fmt.Sprintf("port %d is out of range: 1 to 65535", port)}
	}
	if p.opts.debug {
		return providers.Endpoint{URL: "http://localhost:" + strconv.Itoa(port)}, nil
	}
	f, ok := p.known.get(id)
	if !ok || f.killed || f.domain == "" && p.opts.sandbox == nil || p.opts.socket != "" && f.token == "" {
		sb, err := p.get(ctx, op, id)
		if err != nil {
			return providers.Endpoint{}, err
		}
		if sb.State == providers.StatePaused {
			return providers.Endpoint{}, &errdefs.Error{Code: "E2024", Op: op, Message: "sandbox " + id + " is paused"}
		}
		f, _ = p.known.get(id)
	}
	e := p.at(id, port, f)
	if p.opts.socket != "" && port != api.EnvdPort {
		e.Dial = p.tunnel(id, port, f)
	}
	return e, nil
}

// tunnel opens connections to a port through the runtime.
func (p *Provider) tunnel(id string, port int, f fact) func(context.Context) (net.Conn, error) {
	e := p.runtime(id, f)
	return func(ctx context.Context) (net.Conn, error) {
		c, err := envd.New(&envd.Options{URL: e.URL, Headers: e.Headers, Token: e.Token.Reveal(), Dial: e.Dial, RootCAs: e.RootCAs})
		if err != nil {
			return nil, err
		}
		defer c.Close()
		return c.DialPort(ctx, port)
	}
}

// unready says why a runtime cannot be used.
type unready struct {
	why  string // "did not become ready in 1m0s: last answer 502 from HOST"
	last string // answer that it gave; "none"
	hint string // empty: none in particular
}

// ready waits until the runtime answers as it must; nil says that it does. A
// host that is not known, or not trusted, is not waited for.
func (p *Provider) ready(ctx context.Context, e providers.Endpoint, limit time.Duration) *unready {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	last := "none"
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		if ctx.Err() != nil {
			return &unready{fmt.Sprintf("did not become ready in %v: last answer %s from %s", limit, last, p.hostOf(e)), last, ""}
		}
		status, err := p.health(ctx, e)
		switch {
		case err == nil && status == http.StatusNoContent:
			return nil
		case err == nil:
			last = strconv.Itoa(status)
		case ctx.Err() == nil:
			last = err.Error()
			if u := p.hopeless(e, err); u != nil {
				return u
			}
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// hopeless explains a failure that waiting does not change; nil for others.
func (p *Provider) hopeless(e providers.Endpoint, err error) *unready {
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return &unready{"cannot be reached: host " + dns.Name + " is not known", err.Error(),
			"if one address leads to all sandboxes of this service, set sandbox_url (E2B_SANDBOX_URL) to it; else check domain"}
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return &unready{"cannot be reached: the certificate of " + p.hostOf(e) + " is not trusted", err.Error(), api.CertHint}
	}
	return nil
}

// healthLimit bounds one question: a gateway may hold one that nobody answers.
const healthLimit = 10 * time.Second

func (p *Provider) health(ctx context.Context, e providers.Endpoint) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, healthLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL+"/health", nil)
	if err != nil {
		return 0, err
	}
	for k, v := range e.Headers {
		req.Header[k] = v
	}
	if e.Token != "" {
		req.Header.Set(api.HeaderAccessToken, e.Token.Reveal())
	}
	res, err := p.data.Do(req)
	if err != nil {
		return 0, err
	}
	io.Copy(io.Discard, io.LimitReader(res.Body, 4<<10))
	res.Body.Close()
	return res.StatusCode, nil
}

// hostOf is where an endpoint is, for messages.
func (p *Provider) hostOf(e providers.Endpoint) string {
	if p.opts.socket != "" {
		return "unix:" + p.opts.socket
	}
	return strings.TrimPrefix(strings.TrimPrefix(e.URL, "https://"), "http://")
}
