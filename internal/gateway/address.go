package gateway

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/agent-sandbox/sandbox-go/internal/api"
)

// address is a port of a sandbox, as a request names it.
type address struct {
	id   string
	port int
}

// addressOf finds out whether a request is for a sandbox: nil without an error
// is one for the control plane. Where the Host names a port and a sandbox, it
// decides; everywhere else the two headers do.
func addressOf(r *http.Request, domain string) (*address, error) {
	host, kind, err := hostOf(r.Host)
	if err != nil {
		return nil, err
	}
	headers, err := addressOfHeaders(r.Header)
	if err != nil {
		return nil, err
	}
	if kind == hostLocal || host == domain || host == "api."+domain {
		return headers, nil
	}
	label, _, _ := strings.Cut(host, ".")
	if label == "sandbox" && headers != nil {
		return headers, nil
	}
	port, rest, dash := strings.Cut(label, "-")
	if !dash || strings.Trim(port, "0123456789") != "" || port == "" {
		return headers, nil
	}
	id, _, _ := strings.Cut(rest, "-")
	named, err := newAddress(id, port)
	if err != nil {
		return nil, err
	}
	if headers != nil && *headers != *named {
		return nil, errors.New("host and headers name different sandboxes or ports")
	}
	return named, nil
}

// addressOfHeaders reads the two headers: both, or none.
func addressOfHeaders(h http.Header) (*address, error) {
	ids, ports := h.Values(api.HeaderSandboxID), h.Values(api.HeaderSandboxPort)
	switch {
	case len(ids) == 0 && len(ports) == 0:
		return nil, nil
	case len(ids) > 1 || len(ports) > 1:
		return nil, errors.New("a header that names the sandbox is given twice")
	case len(ids) == 0:
		return nil, errors.New("missing header " + api.HeaderSandboxID)
	case len(ports) == 0:
		return nil, errors.New("missing header " + api.HeaderSandboxPort)
	}
	id, _, _ := strings.Cut(ids[0], "-")
	return newAddress(id, ports[0])
}

func newAddress(id, port string) (*address, error) {
	n, err := strconv.Atoi(port)
	if err != nil || n < 1 || n > 65535 || strings.Trim(port, "0123456789") != "" {
		return nil, errors.New("the port is malformed")
	}
	if !validID(id) {
		return nil, errors.New("the sandbox id is malformed")
	}
	return &address{id, n}, nil
}

// hostKind says whether a host can name a sandbox.
type hostKind int

const (
	hostName  hostKind = iota
	hostLocal          // localhost, an address, or none
)

// hostOf brings a Host header into one form: lower case, without port and
// trailing dot.
func hostOf(header string) (string, hostKind, error) {
	host := strings.ToLower(header)
	if strings.ContainsAny(host, "@/\\?# \t%") || len(host) > 300 {
		return "", 0, errors.New("the host is malformed")
	}
	if h, port, err := net.SplitHostPort(host); err == nil {
		if strings.Trim(port, "0123456789") != "" {
			return "", 0, errors.New("the host is malformed")
		}
		host = h
	} else if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	} else if strings.Contains(host, ":") {
		return "", 0, errors.New("the host is malformed")
	}
	host = strings.TrimSuffix(host, ".")
	if host == "" || host == "localhost" {
		return host, hostLocal, nil
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return host, hostLocal, nil
	}
	return host, hostName, nil
}
