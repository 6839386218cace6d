package gateway

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func TestKeys(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	k, err := OpenKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	a, err := k.Create(" laptop ")
	if err != nil {
		t.Fatal(err)
	}
	// The form that SDKs up to 2.45 check.
	if !regexp.MustCompile(`^e2b_[0-9a-f]{40}$`).MatchString(a.Secret) || a.Name != "laptop" {
		t.Errorf("%+v", a)
	}
	path := filepath.Join(dir, keysFile)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if fi, _ := os.Stat(path); fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", fi.Mode())
	}
	if strings.Contains(string(content), a.Secret[4:]) {
		t.Error("the key itself is on disk")
	}
	// What one process changes, another sees at once.
	other, err := OpenKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := other.Create("server")
	if err != nil {
		t.Fatal(err)
	}
	for secret, want := range map[string]string{a.Secret: a.ID, b.Secret: b.ID, "": "", a.Secret[:43]: "", a.Secret + "0": "", "e2b_": ""} {
		if got, ok, err := k.owner(secret); got != want || ok != (want != "") || err != nil {
			t.Errorf("owner of %q: %q, %v, %v", secret, got, ok, err)
		}
	}
	list, err := k.List()
	if err != nil || len(list) != 2 || list[0].Name != "laptop" || list[0].Secret != "" || list[1].ID != b.ID {
		t.Errorf("%+v, %v", list, err)
	}
	if err := other.Revoke("laptop"); err != nil {
		t.Fatal(err)
	}
	if _, ok, _ := k.owner(a.Secret); ok {
		t.Error("a revoked key is still good")
	}
	if err := k.Revoke(b.ID); err != nil {
		t.Fatal(err)
	}
	if _, ok, _ := other.owner(b.Secret); ok {
		t.Error("a revoked key is still good")
	}
	if err := k.Revoke("laptop"); errdefs.CodeOf(err) != "E1008" {
		t.Errorf("%v", err)
	}
	for _, bad := range []string{"", "  ", strings.Repeat("x", 65), "a\nb", "a\x00"} {
		if _, err := k.Create(bad); !errors.Is(err, errdefs.ErrSettings) {
			t.Errorf("name %q: %v", bad, err)
		}
	}
	if _, err := k.Create("twice"); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Create("twice"); !errors.Is(err, errdefs.ErrSettings) {
		t.Errorf("%v", err)
	}
}

func TestKeysOfManyProcesses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	var wg sync.WaitGroup
	for i := range 8 {
		k, err := OpenKeys(dir)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for j := range 5 {
				if _, err := k.Create(fmt.Sprint(i, " ", j)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	k, err := OpenKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	if list, err := k.List(); len(list) != 40 || err != nil {
		t.Errorf("%d keys, %v", len(list), err)
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(names, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), tempPattern) }) {
		t.Error("temporary files are left")
	}
}

func TestKeysThatCannotBeRead(t *testing.T) {
	for _, c := range []struct {
		name, content string
		mode          os.FileMode
		code          errdefs.Code
	}{
		{"readable by others", "[]", 0o644, "E1007"},
		{"no JSON", "[", 0o600, "E8007"},
		{"no hash", `[{"id":"a","name":"b"}]`, 0o600, "E8007"},
	} {
		dir := filepath.Join(t.TempDir(), "keys")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, keysFile)
		if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenKeys(dir); errdefs.CodeOf(err) != c.code {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	open := t.TempDir()
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenKeys(open); errdefs.CodeOf(err) != "E1007" {
		t.Errorf("a directory for all: %v", err)
	}
	if _, err := OpenKeys("relative"); errdefs.CodeOf(err) != "E8007" {
		t.Errorf("%v", err)
	}
}

// A key file that breaks while the gateway runs lets nobody in.
func TestKeysThatBreak(t *testing.T) {
	f := start(t, t.TempDir(), Options{Provider: newFake()})
	f.want(f.do("GET", "/v2/sandboxes", nil), 200)
	if err := writeFile(filepath.Join(f.state, "gateway"), keysFile, []byte("["), syncDisk); err != nil {
		t.Fatal(err)
	}
	r := f.want(f.do("GET", "/v2/sandboxes", nil), 500)
	if strings.Contains(string(r.body), f.state) {
		t.Errorf("the answer shows a path: %s", r.body)
	}
}
