package config

import (
	"errors"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/agent-sandbox/sandbox-go/internal/redact"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// maxValue bounds the text of one setting, in bytes.
const maxValue = 16 << 10

// parse checks the text of a setting and gives it the form in which it is
// kept. The error says what is wrong, without the text.
func (s *setting) parse(v string) (string, error) {
	switch {
	case len(v) > maxValue:
		return "", errors.New("longer than 16 KiB")
	case !utf8.ValidString(v):
		return "", errors.New("not valid UTF-8")
	case strings.ContainsFunc(v, unicode.IsControl):
		return "", errors.New("holds a control character")
	}
	switch s.kind {
	case secret:
		return v, checkSecret(v)
	case name:
		return v, checkName(v)
	case region:
		return v, checkRegion(v)
	case address:
		return parseAddress(v)
	case host:
		return v, checkHost(v)
	case duration:
		d, err := parseDuration(v)
		return d.String(), err
	case toggle:
		b, err := parseFlag(v)
		return strconv.FormatBool(b), err
	case number:
		if n, err := strconv.Atoi(v); err != nil || n < 0 || n > 10 {
			return "", errors.New("not a number from 0 to 10")
		}
		return v, nil
	case choice:
		for _, c := range s.choices {
			if strings.EqualFold(c, v) {
				return c, nil
			}
		}
		return "", errors.New("not one of " + strings.Join(s.choices, ", "))
	}
	return v, nil
}

func parseDuration(v string) (time.Duration, error) {
	d, err := time.ParseDuration(v)
	if err != nil {
		secs, err := strconv.ParseInt(v, 10, 32)
		if err != nil {
			return 0, errors.New("not a duration; write 90s, 5m or a number of seconds")
		}
		d = time.Duration(secs) * time.Second
	}
	if d <= 0 {
		return 0, errors.New("must be positive; leave it unset for the default")
	}
	return d, nil
}

func parseFlag(v string) (bool, error) {
	switch strings.ToLower(v) {
	case "1", "true", "yes", "on":
		return true, nil
	case "0", "false", "no", "off":
		return false, nil
	}
	return false, errors.New("not a switch; write on or off")
}

// checkSecret finds what a copied key has too much: a service would only say
// that it is refused.
func checkSecret(v string) error {
	first, last := v[0], v[len(v)-1]
	switch {
	case strings.ContainsAny(string(first)+string(last), "\"'`") || strings.HasPrefix(v, "“") || strings.HasSuffix(v, "”"):
		return errors.New("the value has quotes around it; leave them out")
	case strings.ContainsFunc(v, unicode.IsSpace):
		return errors.New("the value holds white space; leave it out")
	case strings.ContainsFunc(v, func(r rune) bool { return r > '~' }):
		return errors.New("the value holds something else than letters, digits and signs of ASCII")
	}
	return nil
}

func checkName(v string) error {
	if strings.ContainsFunc(v, unicode.IsSpace) {
		return errors.New("holds white space")
	}
	return nil
}

// checkRegion keeps everything out that would make another address of one that
// is built from the region.
func checkRegion(v string) error {
	for part := range strings.SplitSeq(v, "-") {
		if part == "" || strings.ContainsFunc(part, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }) {
			return errors.New("not the id of a region, such as cn-shanghai")
		}
	}
	if len(v) > 63 {
		return errors.New("not the id of a region, such as cn-shanghai")
	}
	return nil
}

// parseAddress reads an http or https URL, or unix:/path, and takes the slash
// from its end.
func parseAddress(v string) (string, error) {
	if rest, ok := strings.CutPrefix(v, "unix:"); ok {
		if strings.HasPrefix(rest, "//") {
			rest = "/" + strings.TrimLeft(rest, "/")
		}
		if !filepath.IsAbs(rest) {
			return "", errors.New("not the absolute path of a socket; write unix:/path")
		}
		return "unix:" + rest, nil
	}
	u, err := url.Parse(v)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Opaque != "":
		return "", errors.New("not an address; write https://HOST or unix:/PATH")
	case u.User != nil:
		return "", errors.New("holds a user or password; leave it out")
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		return "", errors.New("holds a query or fragment; leave it out")
	}
	if err := checkHost(u.Host); err != nil {
		return "", err
	}
	u.Host = strings.ToLower(u.Host)
	return strings.TrimRight(u.String(), "/"), nil
}

// checkHost takes host[:port].
func checkHost(v string) error {
	bad := errors.New("not an address; write HOST or HOST:PORT")
	h, port := v, ""
	if strings.Contains(v, "/") {
		return bad
	}
	if strings.Contains(v, ":") {
		var err error
		if h, port, err = net.SplitHostPort(v); err != nil {
			if _, err := netip.ParseAddr(strings.Trim(v, "[]")); err == nil && strings.HasPrefix(v, "[") {
				return nil
			}
			return bad
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return errors.New("the port is not a number from 1 to 65535")
		}
	}
	if _, err := netip.ParseAddr(h); err == nil {
		return nil
	}
	if len(h) == 0 || len(h) > 253 {
		return bad
	}
	for label := range strings.SplitSeq(h, ".") {
		if label == "" || strings.ContainsFunc(label, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
		}) {
			return bad
		}
	}
	return nil
}

// isLoopback reports whether an address stays on this machine.
func isLoopback(addr string) bool {
	if strings.HasPrefix(addr, "unix:") {
		return true
	}
	h := hostOf(addr)
	if h == "localhost" || strings.HasSuffix(h, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(h)
	return err == nil && ip.IsLoopback()
}

// hostOf is the host of a URL or of host[:port], without port, in lower case.
func hostOf(addr string) string {
	if u, err := url.Parse(addr); err == nil && u.Host != "" {
		return strings.ToLower(u.Hostname())
	}
	if h, _, err := net.SplitHostPort(addr); err == nil {
		return strings.ToLower(h)
	}
	return strings.ToLower(strings.Trim(addr, "[]"))
}

// isUnder reports whether host is domain or below it.
func isUnder(host, domain string) bool { return host == domain || strings.HasSuffix(host, "."+domain) }

const op = "read settings"

func wrong(message, suggestion string) *errdefs.Error {
	return &errdefs.Error{Code: "E8007", Op: op, Message: redact.String(message), Suggestion: suggestion}
}

// wrongValue is the error of a value that can't be read. Secrets and what may
// hold one are not shown.
func wrongValue(s *setting, from string, v string, why error) error {
	if s.secret() || strings.Contains(v, "@") {
		return wrong(from+": "+why.Error(), "")
	}
	return wrong(from+"="+shown(v)+": "+why.Error(), "")
}

// shown quotes foreign text, bounded.
func shown(v string) string {
	if len(v) > 200 {
		v = strings.ToValidUTF8(v[:200], "") + "…"
	}
	return strconv.Quote(v)
}
