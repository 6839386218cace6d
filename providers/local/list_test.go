//go:build linux

package local

import "testing"

func FuzzParsePageToken(f *testing.F) {
	f.Add("")
	f.Add(pageTokenOf(savedConfig{ID: sandboxID("a")}))
	f.Add("MTIuLi4v")
	f.Fuzz(func(t *testing.T, token string) {
		p, err := parsePageToken(token)
		if err == nil && p.id != "" && checkID("", p.id) != nil {
			t.Errorf("%q gives the id %q", token, p.id)
		}
	})
}
