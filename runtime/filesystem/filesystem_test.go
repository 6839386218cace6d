//go:build linux

package filesystem

import (
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestDisposition(t *testing.T) {
	for _, c := range []struct {
		header, field, name string
		ok                  bool
	}{
		{`form-data; name="file"; filename="/a b/ü.txt"`, "file", "/a b/ü.txt", true},
		{`form-data; name=file; filename=x`, "file", "x", true},
		{`form-data; name="file"; filename*=UTF-8''%c3%bc`, "file", "ü", true},
		{`form-data; name="file"; filename="a\"b"`, "file", `a"b`, true},
		{`form-data; name="file"`, "file", "", true},
		{`attachment; name="file"; filename="x"`, "", "", false},
		{`form-data; name="file"; name="other"`, "", "", false},
		{``, "", "", false},
		{`;;;`, "", "", false},
	} {
		field, name, err := disposition(c.header)
		if field != c.field || name != c.name || (err == nil) != c.ok {
			t.Errorf("%s: got %q, %q, %v", c.header, field, name, err)
		}
	}
}

func FuzzDisposition(f *testing.F) {
	f.Add(`form-data; name="file"; filename="/a/b"`)
	f.Add(`form-data; name="file"; filename*=UTF-8''%c3%bc`)
	f.Add(`form-data; filename="x`)
	f.Fuzz(func(t *testing.T, header string) {
		field, name, err := disposition(header)
		if err != nil && (field != "" || name != "") {
			t.Errorf("%q: got %q, %q beside an error", header, field, name)
		}
		if len(field)+len(name) > len(header) {
			t.Errorf("%q: %q and %q are longer than what they come from", header, field, name)
		}
	})
}

func TestAccepted(t *testing.T) {
	for header, want := range map[string]string{
		"": "identity", "gzip": "both", "br": "identity", "*": "both", "gzip;q=0": "identity", "identity": "identity", "identity;q=0.1": "identity",
		"gzip, identity;q=0": "gzip", "identity; q=0": "none", "*;q=0": "none", "gzip, *;q=0": "gzip", "identity, *;q=0": "identity",
		"identity;q=x": "identity", ",,;": "identity", "GZIP;q=0.5, Identity": "both", "identity;q=0, *": "gzip", "gzip;q=NaN": "identity",
	} {
		identity, zipped := accepted(http.Header{"Accept-Encoding": {header}})
		got := map[[2]bool]string{{true, true}: "both", {true, false}: "identity", {false, true}: "gzip", {}: "none"}[[2]bool{identity, zipped}]
		if got != want {
			t.Errorf("%q: got %s, want %s", header, got, want)
		}
	}
}

func TestMetadataFrom(t *testing.T) {
	for _, c := range []struct {
		name string
		h    http.Header
		want map[string]string
		ok   bool
	}{
		{"none", http.Header{"Content-Type": {"x"}}, nil, true},
		{"two", http.Header{"X-Metadata-A": {"1"}, "X-Metadata-B-C": {"2"}}, map[string]string{"a": "1", "b-c": "2"}, true},
		{"no key", http.Header{"X-Metadata-": {"1"}}, nil, false},
		{"long key", http.Header{"X-Metadata-" + strings.Repeat("k", 247): {"1"}}, nil, false},
		{"too much", http.Header{"X-Metadata-A": {strings.Repeat("v", 4096)}}, nil, false},
		{"not ASCII", http.Header{"X-Metadata-A": {"é"}}, nil, false},
		{"control", http.Header{"X-Metadata-A": {"a\tb"}}, nil, false},
	} {
		got, err := metadataFrom(c.h)
		if (err == nil) != c.ok || len(got) != len(c.want) {
			t.Errorf("%s: got %v, %v", c.name, got, err)
		}
		for k, v := range c.want {
			if got[k] != v {
				t.Errorf("%s: %s is %q", c.name, k, got[k])
			}
		}
	}
}

// Some files of /proc have no end: they are cut, and the client can tell.
func TestUnsizedIsBounded(t *testing.T) {
	for _, c := range []struct {
		name string
		size int64
		cut  bool
	}{
		{"small", 10_000, false},
		{"as much as is allowed", maxUnsized, false},
		{"more", maxUnsized + 1, true},
		{"without end", math.MaxInt64, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				copyUnsized(w, io.LimitReader(zeros{}, c.size))
			}))
			defer srv.Close()
			resp, err := http.Get(srv.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			n, err := io.Copy(io.Discard, resp.Body)
			if n > maxUnsized || (err != nil) != c.cut || !c.cut && n != c.size {
				t.Errorf("got %d bytes, %v", n, err)
			}
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func FuzzHeaders(f *testing.F) {
	f.Add("gzip;q=0.5, identity;q=0", "Kind", "value")
	f.Add("*;q=0", "", "\xff")
	f.Fuzz(func(t *testing.T, accept, key, value string) {
		accepted(http.Header{"Accept-Encoding": {accept}})
		meta, err := metadataFrom(http.Header{metadataHeader + key: {value}})
		if err == nil && (len(meta) != 1 || meta[strings.ToLower(key)] != value) {
			t.Errorf("%q: %q became %v", key, value, meta)
		}
		for k, v := range meta {
			if len(k) > maxMetadataKey || len(k)+len(v) > maxMetadata || strings.Trim(v, " !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~") != "" {
				t.Errorf("%q: %q was let through", k, v)
			}
		}
	})
}
