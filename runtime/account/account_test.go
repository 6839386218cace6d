//go:build linux

package account

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const passwdText = `# comment
root:x:0:0:root:/root:/bin/sh
anna:x:1234:1234:,,,:/home/anna:/bin/sh
broken line
nohome:x:1235:1235:::/bin/sh
minus:x:4294967295:1:::/bin/sh
anna:x:999:999:second of the name:/x:/bin/sh
`

const groupText = `anna:x:1234:
video:x:44:root,anna
audio:x:29: anna ,other
other:x:30:annabel
bad:x:no:anna
`

func testBook(t *testing.T, def string, canSwitch bool) *Book {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"passwd": passwdText, "group": groupText} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return &Book{def: def, canSwitch: canSwitch, passwd: file{path: dir + "/passwd"}, group: file{path: dir + "/group"}}
}

func TestLookup(t *testing.T) {
	b := testBook(t, "anna", true)
	u, err := b.Lookup("")
	if err != nil {
		t.Fatal(err)
	}
	if u.Name != "anna" || u.UID != 1234 || u.Home != "/home/anna" || len(u.Groups) != 3 {
		t.Errorf("got %+v", u)
	}
	if c := u.Credential(); c == nil || c.Uid != 1234 || len(c.Groups) != 3 {
		t.Errorf("credential %+v", c)
	}
	if u, err := b.Lookup("nohome"); err != nil || u.Home != "/" {
		t.Errorf("without a home: %+v, %v", u, err)
	}
	for _, name := range []string{"nobody-such", "minus", "broken line", "# comment", "root\x00"} {
		var unavailable *UnavailableError
		if _, err := b.Lookup(name); !errors.As(err, &unavailable) || unavailable.Known {
			t.Errorf("%q: got %v", name, err)
		}
	}
}

func TestLookupWithoutSwitching(t *testing.T) {
	b := testBook(t, "anna", false)
	u, err := b.Lookup("anna")
	if err != nil {
		t.Fatal(err)
	}
	// The name and home are those of the account, the numbers our own.
	if u.Name != "anna" || u.Home != "/home/anna" || u.UID != uint32(os.Geteuid()) || u.Credential() != nil {
		t.Errorf("got %+v", u)
	}
	var unavailable *UnavailableError
	if _, err := b.Lookup("root"); !errors.As(err, &unavailable) || !unavailable.Known {
		t.Errorf("root: got %v", err)
	}
	if u, err := testBook(t, "ghost", false).Lookup(""); err != nil || u.Name != "ghost" || u.Home != "/" {
		t.Errorf("default without an account: %+v, %v", u, err)
	}
}

func TestLookupSeesChanges(t *testing.T) {
	b := testBook(t, "anna", true)
	if _, err := b.Lookup("new"); err == nil {
		t.Fatal("found a user that is not there")
	}
	time.Sleep(10 * time.Millisecond) // a tick of file times
	err := os.WriteFile(b.passwd.path, []byte(passwdText+"new:x:7:7::/n:/bin/sh\n"), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if u, err := b.Lookup("new"); err != nil || u.UID != 7 {
		t.Errorf("got %+v, %v", u, err)
	}
	if err := os.Remove(b.passwd.path); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Lookup("new"); err == nil {
		t.Error("found a user in a file that is gone")
	}
}

func TestPath(t *testing.T) {
	u := &User{Name: "anna", Home: "/home/anna"}
	for _, c := range []struct {
		in, workDir, want string
		err               error
	}{
		{"", "", "/home/anna", nil},
		{"", "/srv/", "/srv", nil},
		{"", "sub", "/home/anna/sub", nil},
		{"~", "", "/home/anna", nil},
		{"~/a/../b", "", "/home/anna/b", nil},
		{"a", "/srv", "/home/anna/a", nil},
		{".", "", "/home/anna", nil},
		{"../..", "", "/", nil},
		{"/a//b/./../c/", "", "/a/c", nil},
		{"/../../etc", "", "/etc", nil},
		{"~root/x", "", "", ErrTilde},
		{"a\x00b", "", "", ErrNUL},
	} {
		got, err := u.Path(c.in, c.workDir)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%q in %q: got %q, %v, want %q, %v", c.in, c.workDir, got, err, c.want, c.err)
		}
	}
}

// TestDo acts as another user and comes back, with the calls that Linux has for
// it and with those that gVisor has.
func TestDo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can act as other users")
	}
	own := hasFSIDs
	defer func() { hasFSIDs = own }()
	for name, has := range map[string]bool{"file-system ids": true, "effective ids": false} {
		hasFSIDs = func() bool { return has }
		t.Run(name, testDo)
	}
}

func testDo(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for d := dir; d != "/"; d = filepath.Dir(d) { // the user must get here
		st, err := os.Stat(d)
		if err != nil || os.Chmod(d, st.Mode()|0o111) != nil {
			t.Fatal(err)
		}
	}
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("s"), 0o640); err != nil {
		t.Fatal(err)
	}
	u := &User{UID: 1234, GID: 1234, Groups: []uint32{1234, 44}, switches: true}
	err := u.Do(func() error {
		if _, err := os.ReadFile(secret); !errors.Is(err, os.ErrPermission) {
			t.Errorf("reading a file of root: got %v", err)
		}
		return os.WriteFile(filepath.Join(dir, "mine"), nil, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(secret); err != nil {
		t.Errorf("back as root: %v", err)
	}
	if err := os.Chown(secret, 0, 44); err != nil {
		t.Fatal(err)
	}
	if err := u.Do(func() error { _, err := os.ReadFile(secret); return err }); err != nil {
		t.Errorf("as a member of its group: %v", err)
	}
	want := errors.New("of the function")
	if err := u.Do(func() error { return want }); err != want {
		t.Errorf("got %v", err)
	}
}

func FuzzParseEntry(f *testing.F) {
	for line := range strings.SplitSeq(passwdText, "\n") {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if e := parseEntry(line); e != nil {
			if e.name == "" || !strings.HasPrefix(e.home, "/") || e.uid == ^uint32(0) || e.gid == ^uint32(0) {
				t.Errorf("%q: got %+v", line, e)
			}
		}
		if gid, ok := memberOf(line, "anna"); ok && (gid == ^uint32(0) || !strings.Contains(line, "anna")) {
			t.Errorf("%q: member of %d", line, gid)
		}
	})
}
