//go:build linux

package server

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

// reached is a handler that says it was reached.
var reached = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })

func TestAuthenticate(t *testing.T) {
	signed := func(op, path string, in time.Duration) string {
		expiry := strconv.FormatInt(time.Now().Add(in).Unix(), 10)
		q := url.Values{"path": {path}, "signature": {sign(path, op, "", testToken, expiry)}, "signature_expiration": {expiry}}
		return "/files?" + q.Encode()
	}
	for _, c := range []struct {
		name, method, target, header, value string
		want                                int
	}{
		{"health", "GET", "/health", "", "", 418},
		{"health with another method", "POST", "/health", "", "", 401},
		{"health under another name", "GET", "/health/", "", "", 401},
		{"health hidden in a path", "GET", "//health", "", "", 401},
		{"no token", "POST", "/process.Process/List", "", "", 401},
		{"token", "POST", "/process.Process/List", tokenHeader, testToken, 418},
		{"wrong token", "POST", "/process.Process/List", tokenHeader, testToken + "x", 401},
		{"part of the token", "POST", "/process.Process/List", tokenHeader, testToken[:5], 401},
		{"empty token", "POST", "/process.Process/List", tokenHeader, "", 401},
		{"bearer on envd's side", "POST", "/process.Process/List", "Authorization", "Bearer " + testToken, 401},
		{"bearer on ours", "POST", "/sandbox/x", "Authorization", "Bearer " + testToken, 418},
		{"our header on ours", "POST", "/sandbox/x", "X-Sandbox-Token", testToken, 418},
		{"wrong bearer", "POST", "/sandbox/x", "Authorization", "Bearer x", 401},
		{"signature", "GET", signed("read", "/f", time.Hour), "", "", 418},
		{"signature to write", "POST", signed("write", "/f", time.Hour), "", "", 418},
		{"signature of the other way", "POST", signed("read", "/f", time.Hour), "", "", 401},
		{"signature that is over", "GET", signed("read", "/f", -time.Hour), "", "", 401},
		{"signature of another path", "GET", strings.Replace(signed("read", "/f", time.Hour), "path=%2Ff", "path=%2Fg", 1), "", "", 401},
		{"signature on another method", "DELETE", signed("read", "/f", time.Hour), "", "", 401},
		{"signature beside a wrong token", "GET", signed("read", "/f", time.Hour), tokenHeader, "x", 401},
		{"expiry that is no number", "GET", "/files?signature_expiration=soon", "", "", 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest(c.method, c.target, nil)
			if c.header != "" {
				r.Header.Set(c.header, c.value)
			}
			w := httptest.NewRecorder()
			authenticate(testToken, reached).ServeHTTP(w, r)
			if w.Code != c.want {
				t.Errorf("got %d, want %d: %s", w.Code, c.want, w.Body)
			}
			if c.want == 401 && w.Header().Get(fault.Header) != "E1001" {
				t.Errorf("code %q", w.Header().Get(fault.Header))
			}
		})
	}
}

// FuzzSignature: no query passes but the one that was signed.
func FuzzSignature(f *testing.F) {
	f.Add("path=/f&signature=v1_AAAA&signature_expiration=4102444800", "secret")
	f.Add("path=%00&username=u&signature="+url.QueryEscape(sign("\x00", "read", "u", "t", "")), "t")
	f.Fuzz(func(t *testing.T, query, token string) {
		r := &http.Request{Method: "GET", URL: &url.URL{Path: "/files", RawQuery: query}, Header: http.Header{}}
		if checkExpiry(r) != nil || checkSignature(r, token) != "" {
			return
		}
		q := r.URL.Query()
		expiry := ""
		if q.Has("signature_expiration") {
			n, err := strconv.ParseInt(q.Get("signature_expiration"), 10, 64)
			if err != nil || n < time.Now().Unix() {
				t.Fatalf("%q passes with its expiry", query)
			}
			expiry = strconv.FormatInt(n, 10)
		}
		if q.Get("signature") != sign(q.Get("path"), "read", q.Get("username"), token, expiry) {
			t.Errorf("%q passes", query)
		}
	})
}

func FuzzChannelRequest(f *testing.F) {
	f.Add(testChannel, "sandbox-frames/1", "keep-alive, Upgrade")
	f.Add("../"+testChannel, "websocket", "upgrade,")
	f.Fuzz(func(t *testing.T, id, upgrade, connection string) {
		if validChannelID(id) {
			if len(id) != 32 || strings.ToLower(id) != id || strings.ContainsAny(id, "/.%g") {
				t.Errorf("id %q passes", id)
			}
		}
		if wantsUpgrade(http.Header{"Upgrade": {upgrade}, "Connection": {connection}}, channelProtocol) && !strings.Contains(strings.ToLower(connection), "upgrade") {
			t.Errorf("%q, %q passes", upgrade, connection)
		}
	})
}

func TestLimits(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	// A header that is too long.
	req, err := http.NewRequest("GET", "http://sandbox/envs", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Long", strings.Repeat("x", 2*maxHeaderBytes))
	resp, err := r.http.Do(req)
	if err == nil {
		resp.Body.Close()
		if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("long header: got %s", resp.Status)
		}
	}
	// A message that is too long, announced and not.
	for _, body := range []io.Reader{
		strings.NewReader(`{"path":"` + strings.Repeat("x", maxMessageBytes) + `"}`),
		io.LimitReader(zeros{}, 2*maxMessageBytes),
	} {
		resp, err := r.http.Post("http://sandbox/filesystem.Filesystem/Stat", "application/json", body)
		if err != nil {
			continue // the server may hang up on the rest
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusTooManyRequests {
			t.Errorf("long message: got %s", resp.Status)
		}
	}
	// A client that says nothing does not hold a connection for ever, and one
	// that has a stream open is left alone: see headerTimeout and patientBody.
	conn, err := net.Dial("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /health HTTP/1.1\r\nHo"); err != nil {
		t.Fatal(err)
	}
	conn.SetReadDeadline(time.Now().Add(headerTimeout + 10*time.Second))
	began := time.Now()
	answer, err := io.ReadAll(conn)
	if err != nil || time.Since(began) < headerTimeout/2 {
		t.Errorf("half a header: got %q, %v after %v", answer, err, time.Since(began))
	}
}

// TestQuietStreamKeepsItsConnection: the deadline of the request's body must
// not end the answer.
func TestQuietStreamKeepsItsConnection(t *testing.T) {
	body := &patientBody{ReadCloser: io.NopCloser(strings.NewReader("x")), control: http.NewResponseController(httptest.NewRecorder())}
	if b, err := io.ReadAll(body); err != nil || string(b) != "x" {
		t.Errorf("got %q, %v", b, err)
	}
	deadlines := &deadlineRecorder{ResponseWriter: httptest.NewRecorder()}
	body = &patientBody{ReadCloser: io.NopCloser(strings.NewReader("x")), control: http.NewResponseController(deadlines)}
	if _, err := io.ReadAll(body); err != nil {
		t.Fatal(err)
	}
	if len(deadlines.set) == 0 || !deadlines.set[len(deadlines.set)-1].IsZero() {
		t.Errorf("deadlines %v, want the last one lifted", deadlines.set)
	}
}

type deadlineRecorder struct {
	http.ResponseWriter
	set []time.Time
}

func (d *deadlineRecorder) SetReadDeadline(t time.Time) error { d.set = append(d.set, t); return nil }
