//go:build linux

package local

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/netrule"
	"github.com/agent-sandbox/sandbox-go/providers"
)

// relay copies both ways until both sides have ended, and closes both. What was
// read of c already goes first.
func (e *egress) relay(c *inConn, out *outConn, t netTarget, first []byte) {
	end := sync.OnceFunc(func() {
		c.Close()
		out.Close()
	})
	defer end()
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := io.Copy(c.insideConn, out.TCPConn); err != nil { // by splice(2), between two of TCP
			end()
			return
		}
		_ = c.CloseWrite() // an error shows in the other direction
	})
	if err := e.send(c, out, t, first); err != nil {
		if r, ok := errors.AsType[*refusal](err); ok {
			e.audit.note(providers.NetworkEvent{Kind: "name", Host: t.host(), Port: int(t.port), Reason: r.reason})
			if r, ok := errors.AsType[*httpRefusal](err); ok {
				c.SetWriteDeadline(time.Now().Add(time.Second))
				_, _ = c.Write(r.answer())
				_ = c.CloseWrite()
				// What the client still sends would reset the connection, and
				// the answer with it.
				c.SetReadDeadline(time.Now().Add(time.Second))
				_, _ = io.CopyN(io.Discard, c.insideConn, sniffBytes)
			} else {
				_ = c.SetLinger(0)
			}
		}
		end()
	} else {
		_ = out.CloseWrite()
	}
	wg.Wait()
}

// send copies from inside to outside. First it looks whether a client that says
// which name it wants means the one it was let out for.
func (e *egress) send(c *inConn, out *outConn, t netTarget, first []byte) error {
	if t.name != "" && !e.settings.trust {
		r := &recorder{r: io.MultiReader(bytes.NewReader(first), c.insideConn), begun: func() {
			c.SetReadDeadline(time.Now().Add(sniffTimeout))
		}}
		err := checkName(r, t.name)
		c.SetReadDeadline(time.Time{})
		if err != nil {
			return err
		}
		first = r.seen.Bytes()
	}
	if len(first) > 0 {
		if _, err := out.Write(first); err != nil {
			return err
		}
	}
	_, err := io.Copy(out.TCPConn, c.insideConn)
	return err
}

const (
	sniffTimeout = 30 * time.Second // for a client that has begun to say its name
	sniffBytes   = 64 << 10
)

// A recorder keeps what was read through it.
type recorder struct {
	r     io.Reader
	begun func() // called when the first byte was read; may be nil
	seen  bytes.Buffer
}

var errTooLong = errors.New("too long")

func (r *recorder) Read(p []byte) (int, error) {
	room := sniffBytes - r.seen.Len()
	if room <= 0 {
		return 0, errTooLong
	}
	n, err := r.r.Read(p[:min(len(p), room)])
	if n > 0 && r.seen.Len() == 0 && r.begun != nil {
		r.begun()
	}
	r.seen.Write(p[:n])
	return n, err
}

// checkName reads the beginning of what a client sends, so far as it can hold a
// name: the first message of TLS, or the head of the first request of HTTP/1.
// Anything else is not looked at, nor is what follows: a second request on the
// same connection, say. A client that waits for the server to speak first may. A name other than the one is a [*refusal]. So is silence
// after a beginning.
func checkName(r *recorder, name string) error {
	b := make([]byte, 2048)
	for {
		n, err := r.Read(b)
		seen := r.seen.Bytes()
		switch {
		case len(seen) > 0 && seen[0] == recordHandshake:
			return checkTLS(r, name)
		case len(seen) > 0:
			done, herr := checkHTTP(seen, name, err == errTooLong)
			if done {
				return herr
			}
		}
		if n == 0 && err != nil {
			switch {
			case err == io.EOF:
				// For some servers that is the end of a head, too.
				_, err := checkHTTP(append(bytes.Clone(seen), "\r\n\r\n"...), name, true)
				return err
			case isTimeout(err):
				return &refusal{"the client did not finish its first request"}
			}
			return err
		}
	}
}

func isTimeout(err error) bool {
	ne, ok := errors.AsType[net.Error](err)
	return ok && ne.Timeout()
}

// recordHandshake is the first byte of a connection with TLS (RFC 8446, 5.1).
const recordHandshake = 0x16

var errSeen = errors.New("seen")

// checkTLS reads the ClientHello. Without a server name there is nothing to
// compare: the server decides what it is. An encrypted one has an outer name,
// which counts.
func checkTLS(r *recorder, name string) error {
	seen := bytes.Clone(r.seen.Bytes())
	got, found := "", false
	s := tls.Server(&helloConn{r: io.MultiReader(bytes.NewReader(seen), r)}, &tls.Config{
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			got, found = h.ServerName, true
			return nil, errSeen
		},
	})
	err := s.Handshake()
	switch {
	case !found && err == io.EOF:
		return nil // the client is gone
	case !found:
		return &refusal{"what begins like TLS is not: " + err.Error()}
	case got == "":
		return nil
	}
	if asked, err := netrule.Name(got); err != nil || asked != name {
		return &refusal{fmt.Sprintf("the TLS server name is %q on a connection to %s", clipTo(got, 255), name)}
	}
	return nil
}

// A helloConn is a connection that can only be read.
type helloConn struct {
	net.Conn // nil: nothing else is called
	r        io.Reader
}

func (c *helloConn) Read(p []byte) (int, error)       { return c.r.Read(p) }
func (c *helloConn) Write(p []byte) (int, error)      { return len(p), nil }
func (c *helloConn) Close() error                     { return nil }
func (c *helloConn) SetDeadline(time.Time) error      { return nil }
func (c *helloConn) SetReadDeadline(time.Time) error  { return nil }
func (c *helloConn) SetWriteDeadline(time.Time) error { return nil }

// An httpRefusal can be told to the client in its own protocol.
type httpRefusal struct{ refusal }

func (r *httpRefusal) Unwrap() error { return &r.refusal }

func (r *httpRefusal) answer() []byte {
	body := "sandbox: " + r.reason + "\n"
	return fmt.Appendf(nil, "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
}

// checkHTTP looks at the head of a request. done is false while it is not
// complete; full says that there will not be more. What is not the first line of
// a request of HTTP/1 is done.
func checkHTTP(b []byte, name string, full bool) (done bool, err error) {
	b = bytes.TrimLeft(b, "\r\n") // as servers do
	line, rest, complete := bytes.Cut(b, []byte("\n"))
	if len(line) == 0 {
		return full, nil
	}
	target, request := afterMethod(line)
	switch {
	case !request, isGit(line):
		return true, nil
	case hasControls(target):
		return true, &httpRefusal{refusal{"the first line has control characters"}}
	case !complete && full:
		return true, &httpRefusal{refusal{"the first line is too long"}}
	case !complete:
		return false, nil
	}
	if !bytes.Contains(bytes.ToUpper(target), []byte("HTTP/")) {
		return true, nil
	}
	if bytes.Contains(target, []byte("HTTP/2")) {
		return true, &httpRefusal{refusal{"HTTP/2 without TLS cannot be checked"}}
	}
	if words := strings.Fields(string(target)); len(words) > 0 && !strings.HasPrefix(words[0], "/") {
		if _, after, ok := strings.Cut(words[0], "://"); ok {
			host, _, _ := strings.Cut(after, "/")
			if err := sameHost(host, name); err != nil {
				return true, err
			}
		}
	}
	for len(rest) > 0 {
		line, after, complete := bytes.Cut(rest, []byte("\n"))
		if !complete {
			break
		}
		rest = after
		text := strings.TrimRight(string(line), "\r")
		if text == "" {
			return true, nil
		}
		for part := range strings.SplitSeq(text, "\r") { // there are servers for which it ends a line
			key, value, _ := strings.Cut(part, ":")
			if strings.EqualFold(strings.TrimSpace(key), "host") {
				if err := sameHost(strings.TrimSpace(value), name); err != nil {
					return true, err
				}
			}
		}
	}
	if full {
		return true, &httpRefusal{refusal{"the head of the request is too long"}}
	}
	return false, nil
}

// afterMethod reports whether a line, or its beginning, can be that of a request,
// which its method alone decides: a token, and a space of any kind that servers
// take for one. rest is what follows.
func afterMethod(line []byte) (rest []byte, ok bool) {
	const marks = "!#$%&'*+-.^_`|~"
	for i, c := range line {
		switch {
		case c >= '0' && c <= '9', c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z', strings.IndexByte(marks, c) >= 0:
		case strings.IndexByte(" \t\v\f\r\x85\xa0", c) >= 0:
			return line[i+1:], i > 0
		default:
			return nil, false
		}
	}
	return nil, len(line) > 0
}

// hasControls reports whether a line has characters that no request has.
func hasControls(b []byte) bool {
	for i, c := range b {
		if (c < ' ' || c == 0x7f) && c != '\t' && (c != '\r' || i != len(b)-1) {
			return true
		}
	}
	return false
}

// isGit reports whether a line is the first of git's own protocol, which has a
// NUL and no end: four digits, and what is wanted.
func isGit(line []byte) bool {
	return len(line) > 8 && len(bytes.Trim(line[:4], "0123456789abcdef")) == 0 && bytes.HasPrefix(line[4:], []byte("git-"))
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// sameHost compares what a request names, with or without a port.
func sameHost(host, name string) error {
	_, h, ok := cutLast(host, "@")
	if !ok {
		h = host
	}
	if i := strings.LastIndexByte(h, ':'); i >= 0 && !strings.HasSuffix(h, "]") {
		h = h[:i]
	}
	if asked, err := netrule.Name(h); err != nil || asked != name {
		return &httpRefusal{refusal{fmt.Sprintf("the request is for the host %q on a connection to %s", clipTo(host, 255), name)}}
	}
	return nil
}
