//go:build linux

package filesystem

import (
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"testing"

	"github.com/agent-sandbox/sandbox-go/runtime/account"
)

// Where the user may write the file but not its folder, nothing changes before
// the whole content is there.
func TestStoreOver(t *testing.T) {
	name := ""
	if os.Geteuid() == 0 {
		name = "nobody" // root may write everywhere
	}
	u, err := account.NewBook(name, name != "").Lookup("")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for d := dir; d != "/"; d = path.Dir(d) {
		if st, err := os.Stat(d); err != nil || st.Mode()&0o111 != 0o111 && os.Chmod(d, st.Mode()|0o111) != nil {
			t.Fatal(d, err)
		}
	}
	p := dir + "/f"
	const old = "what was there before"
	for _, err := range []error{os.WriteFile(p, []byte(old), 0o600), os.Chmod(p, 0o666), os.Chmod(dir, 0o555)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { os.Chmod(dir, 0o755) })
	before, err := os.Stat(p)
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{uploads: newUploads()}
	broken := errors.New("broken")
	for _, c := range []struct {
		content, want string
		err           error
	}{
		{"half", old, broken},
		{"new", "new", nil},
		{"", "", nil},
		{"longer than all of those before", "longer than all of those before", nil},
	} {
		err := s.store(u, p, nil, func(f *os.File, over *fileID) error {
			if over == nil {
				t.Error("it is not known to be written over")
			}
			if got, err := os.ReadFile(p); err != nil || string(got) == c.content {
				t.Errorf("while it is written: %q, %v", got, err)
			}
			if _, err := io.WriteString(f, c.content); err != nil {
				t.Error(err)
			}
			return c.err
		})
		if !errors.Is(err, c.err) {
			t.Errorf("%q: %v", c.content, err)
		}
		if got, err := os.ReadFile(p); err != nil || string(got) != c.want {
			t.Errorf("%q left %q, %v", c.content, got, err)
		}
	}
	if after, err := os.Stat(p); err != nil || !os.SameFile(before, after) || after.Mode() != before.Mode() {
		t.Errorf("%v, %v, before %v", after, err, before)
	}
	for _, tmp := range []string{os.TempDir(), "/dev/shm"} {
		list, err := os.ReadDir(tmp)
		if err == nil && slices.ContainsFunc(list, func(e os.DirEntry) bool { return s.uploads.known(e.Name()) }) {
			t.Errorf("something is left in %s", tmp)
		}
	}
}
