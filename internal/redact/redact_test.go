package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
)

func TestPatterns(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"plain", "sandbox abc: 3 files, token bucket full", "sandbox abc: 3 files, token bucket full"},
		{"access key", "key LTAI5tAbcdefghijkl refused", "key *** refused"},
		{"sts", "token STS.NUabcdefghij1 expired", "token *** expired"},
		{"e2b", "key e2b_0123456789abcdef0123 bad", "key *** bad"},
		{"jwt", "got eyJhbGciOi.eyJzdWIi.c2ln-_x now", "got *** now"},
		{"pem", "a\n-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\nb", "a\n***\nb"},
		{"pem cut", "a -----BEGIN RSA PRIVATE KEY-----\nMIIE", "a ***"},
		{"user info", "dial https://me:pw@x@host:8/p?q", "dial https://***@host:8/p?q"},
		{"query", "GET /f?path=/a&signature=v1_abc&x=1 HTTP", "GET /f?path=/a&signature=***&x=1 HTTP"},
		{"query first", "https://h/f?token=abc#frag", "https://h/f?token=***#frag"},
		{"header line", "X-API-KEY: abc\r\nAccept: */*", "X-API-KEY: ***\r\nAccept: */*"},
		{"bearer", "authorization: Bearer abc.def\nHost: x", "authorization: ***\nHost: x"},
		{"other scheme", "Authorization: ACS3-HMAC-SHA256 Credential=x,Signature=y", "Authorization: ***"},
		{"header map", "map[Authorization:[Bearer x y] Host:[h] X-Access-Token:[t]]", "map[Authorization:*** Host:[h] X-Access-Token:***]"},
		{"cookie", "Cookie: a=1; b=2", "Cookie: ***"},
		{"json", `{"apiKey":"abc","name":"n","envdAccessToken": "x\"y","tokens":["a","b"]}`, `{"apiKey":"***","name":"n","envdAccessToken": "***","tokens":"***"}`},
		{"json cut", `{"password":"abc`, `{"password":"***"`},
		{"json in text", `body "{\"accessToken\":\"abc\",\"n\":1}"`, `body "{\"accessToken\":\"***\",\"n\":1}"`},
	} {
		if got := String(c.in); got != c.want {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, c.want)
		}
	}
}

func TestHint(t *testing.T) {
	for in, want := range map[string]string{"": "***", "e2b_012345": "***", "e2b_0123456789abcdef9f": "e2b***9f"} {
		if got := Hint(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestHeader(t *testing.T) {
	h := http.Header{"X-Api-Key": {"k"}, "Accept": {"*/*"}, "X-Own": {"s"}, "X-Acs-Accesskey-Id": {"LTAI5tAbcdefghijkwxyz"}}
	got := Header(h, "x-own")
	if fmt.Sprint(got) != "map[Accept:[*/*] X-Acs-Accesskey-Id:[***wxyz] X-Api-Key:[***] X-Own:[***]]" {
		t.Errorf("got %v", got)
	}
	if h.Get("X-Own") != "s" || Header(nil) != nil {
		t.Error("the header itself was changed")
	}
}

type hidden struct{ inner *struct{ Text string } }

func (h hidden) MarshalJSON() ([]byte, error) { return json.Marshal(h.inner) }

// Whatever a logger is given, no handler below sees a secret.
func TestHandler(t *testing.T) {
	const secret = "correct horse battery"
	Add(secret)
	var nilError *url.Error
	for _, form := range []string{"text", "json"} {
		var out bytes.Buffer
		var h slog.Handler = slog.NewTextHandler(&out, nil)
		if form == "json" {
			h = slog.NewJSONHandler(&out, nil)
		}
		log := slog.New(Handler(Handler(h)))
		log.With("a", secret).WithGroup("g").With("b", errors.New("x "+secret)).Warn("m "+secret,
			"c", []byte(secret), "d", slog.GroupValue(slog.String("e", secret)), "f", map[string]string{"k": secret},
			"g", &url.URL{Scheme: "https", User: url.UserPassword("u", secret), Host: "h"}, "h", hidden{&struct{ Text string }{secret}},
			"i", http.Header{"X-Api-Key": {"short"}}, "api_key", "short", "j", secretValuer(secret), "k", nilError, "l", 7, "m", nil)
		for _, bad := range []string{secret, "short", url.QueryEscape(secret), url.PathEscape(secret), base64.StdEncoding.EncodeToString([]byte(secret))} {
			if strings.Contains(out.String(), bad) {
				t.Errorf("%s shows %q: %s", form, bad, &out)
			}
		}
		if !strings.Contains(out.String(), "m ***") || !strings.Contains(out.String(), "7") {
			t.Errorf("%s: %s", form, &out)
		}
	}
	if Handler(nil) != nil || Logger(nil) == nil {
		t.Error("nil")
	}
}

type secretValuer string

func (s secretValuer) LogValue() slog.Value { return slog.StringValue(string(s)) }

// Keys are forgotten, oldest first, when there are too many.
func TestAddIsBounded(t *testing.T) {
	for i := range maxKnown + 10 {
		Add("bounded-secret-" + strconv.Itoa(i))
	}
	if got := String("bounded-secret-265 ok"); got != "*** ok" {
		t.Errorf("got %q", got)
	}
	known.mu.Lock()
	n := len(known.secrets)
	known.secrets, known.replacer = nil, nil
	known.mu.Unlock()
	if n != maxKnown {
		t.Errorf("%d secrets are kept", n)
	}
}

// No spelling of a secret survives, whatever is around it.
func FuzzString(f *testing.F) {
	f.Add("correct horse/+&\"<é>", "before ", " after")
	f.Add("\x00\xff12345678", "", "")
	f.Add("12345678", "1234567", "2345678")
	f.Fuzz(func(t *testing.T, secret, before, after string) {
		if len(secret) < minLength || len(secret) > 1000 || strings.Contains("************", secret) {
			return
		}
		Add(secret)
		inJSON, _ := json.Marshal(secret)
		for _, form := range []string{
			secret, url.QueryEscape(secret), url.PathEscape(secret), strconv.Quote(secret), quoted(string(inJSON)),
		} {
			got := String(before + form + after)
			if strings.Contains(got, form) && !strings.Contains(before+Mask+after, form) {
				t.Errorf("%q shows the form %q", got, form)
			}
		}
		for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.RawURLEncoding} {
			got := String("x " + enc.EncodeToString([]byte(before+secret+after)) + " y")
			if digits := inBase64(enc, secret, len(before)%3); strings.Contains(got, digits) {
				t.Errorf("%q shows the digits %q", got, digits)
			}
		}
		String(before)
	})
}
