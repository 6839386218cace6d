package envd

import (
	"context"
	"encoding/json"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Addresses that envd 0.6.13 took are the ones that we make.
func TestSignatureAsRecorded(t *testing.T) {
	data, err := os.ReadFile("../../runtime/server/testdata/recordings/url-signed.json")
	if err != nil {
		t.Fatal(err)
	}
	var rec struct {
		AccessToken string
		Exchanges   []struct {
			Method, Path   string
			Status         int
			RequestHeaders map[string]any
		}
	}
	if err := json.Unmarshal(data, &rec); err != nil {
		t.Fatal(err)
	}
	n := 0
	for i, e := range rec.Exchanges {
		u, err := url.Parse("http://x" + e.Path)
		if err != nil {
			t.Fatal(err)
		}
		q := u.Query()
		if e.Status != 200 || q.Get("signature") == "" || e.RequestHeaders["X-Access-Token"] != nil {
			continue
		}
		n++
		got := Sign(q.Get("path"), e.Method == "POST", q.Get("username"), rec.AccessToken, q.Get("signature_expiration"))
		if got != q.Get("signature") {
			t.Errorf("exchange %d: got %s, want %s", i, got, q.Get("signature"))
		}
	}
	if n < 3 {
		t.Errorf("only %d signatures were recorded", n)
	}
}

func TestFileURL(t *testing.T) {
	c, err := New(&Options{URL: "https://49983-box.example.com/prefix/", Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, path := range []string{"/a b+c%d/ü€.txt", "rel", "~/x", "/q?x=1&y#z", `/"'\`, "/new\nline"} {
		for _, a := range []FileAddress{{Path: path}, {Path: path, Write: true, User: "anna b"}, {Path: path, Expires: time.Unix(2_000_000_000, 1)}} {
			text, err := c.FileURL(a)
			if err != nil {
				t.Fatal(err)
			}
			u, err := url.Parse(text)
			if err != nil || u.Host != "49983-box.example.com" || u.Path != "/prefix/files" || u.Fragment != "" {
				t.Fatalf("%s: %v", text, err)
			}
			if strings.Contains(text, "secret") {
				t.Errorf("%s holds the token", text)
			}
			_, query, _ := strings.Cut(text, "?")
			if strings.ContainsAny(strings.ReplaceAll(query, "+", ""), "/ ") {
				t.Errorf("%s is not escaped", text)
			}
			q := u.Query()
			expiry := ""
			if !a.Expires.IsZero() {
				expiry = "2000000001"
			}
			if q.Get("path") != path || q.Get("username") != a.User || q.Has("username") != (a.User != "") || q.Get("signature_expiration") != expiry {
				t.Errorf("%s says %v", text, q)
			}
			if q.Get("signature") != Sign(path, a.Write, a.User, "secret", expiry) {
				t.Errorf("%s: another signature", text)
			}
		}
	}
	if text, err := c.FileURL(FileAddress{Path: "x", Base: "https://other/"}); err != nil || !strings.HasPrefix(text, "https://other/files?") {
		t.Errorf("got %s, %v", text, err)
	}
}

func TestFileURLWithoutAddressOrToken(t *testing.T) {
	c, err := New(&Options{URL: "http://localhost", Token: "t", Dial: func(context.Context) (net.Conn, error) { return nil, net.ErrClosed }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.FileURL(FileAddress{Path: "x"}); errdefs.CodeOf(err) != "E8004" || !strings.Contains(err.Error(), "no address") {
		t.Errorf("got %v", err)
	}
	open, err := New(&Options{URL: "http://localhost"})
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if text, err := open.FileURL(FileAddress{Path: "x y"}); err != nil || text != "http://localhost/files?path=x+y" {
		t.Errorf("got %s, %v", text, err)
	}
	if _, err := open.FileURL(FileAddress{Path: "x", Expires: time.Now()}); errdefs.CodeOf(err) != "E8004" {
		t.Errorf("got %v", err)
	}
}
