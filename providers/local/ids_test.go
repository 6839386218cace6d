//go:build linux

package local

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func TestSandboxID(t *testing.T) {
	if a, b := sandboxID("x"), sandboxID("x"); a != b {
		t.Errorf("the same request gives %s and %s", a, b)
	}
	if a, b := sandboxID("x"), sandboxID("y"); a == b {
		t.Error("different requests give the same id")
	}
	if a, b := sandboxID(""), sandboxID(""); a == b {
		t.Error("requests without identity share an id")
	}
	for _, id := range []string{sandboxID(""), sandboxID("x"), randomText(idLength)} {
		if err := checkID("", id); err != nil {
			t.Error(err)
		}
	}
}

func TestCheckIDRefuses(t *testing.T) {
	for _, id := range []string{
		"", ".", "..", "../../../etc/passwdxx", "/", "aaaaaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaaaaaaa", "AAAAAAAAAAAAAAAAAAAA",
		"aaaaaaaaa/aaaaaaaaaa", "aaaaaaaaa.aaaaaaaaaa", "aaaaaaaaa\x00aaaaaaaaaa", "äaaaaaaaaaaaaaaaaaa", strings.Repeat("a", 1<<20),
	} {
		err := checkID("get", id)
		if !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("%.30q: %v", id, err)
			continue
		}
		if len(err.Error()) > 300 || !strings.Contains(err.Error(), "lower-case") {
			t.Errorf("%.30q: text does not name the form: %.300s", id, err)
		}
	}
}

func TestLeaseBlock(t *testing.T) {
	tr := testTree(t)
	seen := map[int]*os.File{}
	for range 20 {
		n, f, err := leaseBlock(tr.ids)
		if err != nil {
			t.Fatal(err)
		}
		if seen[n] != nil || n < 0 || n >= blockCount {
			t.Fatalf("block %d was leased twice or does not exist", n)
		}
		seen[n] = f
	}
	// One holder dies, one releases as it should; the others hold on.
	var dead, released int
	for n, f := range seen {
		if dead == 0 {
			dead = n
			f.Close()
		} else if released == 0 {
			released = n
			f.Close()
			if err := releaseLease(tr.ids, n); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := collectLeases(tr.ids, nil); err != nil {
		t.Fatal(err)
	}
	names, _ := tr.ids.names()
	if len(names) != 18 {
		t.Errorf("%d leases are left, want 18", len(names))
	}
	for n, f := range seen {
		if err := releaseLease(tr.ids, n); err != nil {
			t.Error(err)
		}
		f.Close()
	}
	if err := collectLeases(tr.ids, nil); err != nil {
		t.Error(err)
	}
	if names, _ := tr.ids.names(); len(names) != 0 {
		t.Errorf("left: %q", names)
	}
}

// When every number has a file, those that nobody holds are taken over.
func TestLeaseTakesOver(t *testing.T) {
	tr := testTree(t)
	for n := range blockCount {
		f, err := tr.ids.newLock(leaseName(n))
		if err != nil {
			t.Fatal(err)
		}
		if n == 7 {
			f.Close()
			continue
		}
		if n%16 != 0 { // enough holders, and not as many descriptors
			f.Close()
			if err := tr.ids.remove(leaseName(n)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		defer f.Close()
	}
	n, f, err := leaseBlock(tr.ids)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if n%16 == 0 {
		t.Errorf("block %d has a holder", n)
	}
}

func TestIDRangeWithin(t *testing.T) {
	r := idRange{100000, 65535}
	for text, want := range map[string]bool{
		"         0          0 4294967295\n": true,
		"      1001       1001          1\n": false,
		"0 1000 1\n1 100000 65536\n":         false,
		"0 1000 1\n100000 1 65535\n":         true,
		"":                                   false,
		"x y z\n":                            false,
	} {
		if got := r.within([]byte(text)); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
