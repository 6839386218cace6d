//go:build linux

package local

import (
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/providers"
)

// What pid 1 executes cannot be written by way of what the sandbox is given,
// not even by root outside: root gives a read-only copy of the mount, others a
// sealed copy in memory.
func TestExecutableProtected(t *testing.T) {
	path := filepath.Join(testRoot(t), "runtime")
	content := []byte("not really a program")
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, root := range []bool{true, false} {
		e, err := openExecutable(path, root)
		if err != nil {
			t.Fatal(err)
		}
		defer e.file.Close()
		want := exeMemfd
		if root && os.Geteuid() == 0 {
			want = exeDetached
		}
		if e.how != want {
			t.Errorf("root %v: protected as %s, want %s", root, e.how, want)
		}
		again := "/proc/self/fd/" + strconv.Itoa(int(e.file.Fd()))
		f, err := os.OpenFile(again, os.O_WRONLY, 0)
		if err == nil { // a sealed file can be opened, not changed
			if _, werr := f.Write([]byte("x")); werr == nil {
				t.Errorf("%s: was written", e.how)
			}
			if terr := f.Truncate(0); terr == nil {
				t.Errorf("%s: was cut", e.how)
			}
			f.Close()
		} else if e.how == exeDetached && !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: %v", e.how, err)
		}
		r, err := os.Open(again)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		r.Close()
		if err != nil || string(got) != string(content) {
			t.Errorf("%s: holds %q, %v", e.how, got, err)
		}
		if e.how == exeMemfd {
			seals, err := unix.FcntlInt(e.file.Fd(), unix.F_GET_SEALS, 0)
			all := unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
			if err != nil || seals&all != all {
				t.Errorf("seals %#x, %v", seals, err)
			}
		}
	}
}

// All sandboxes of a process share one copy of the executable, whose content is
// the same after code inside has tried to change it.
func TestExecutableShared(t *testing.T) {
	p := testProvider(t)
	one, err := p.runtimeFor()
	if err != nil {
		t.Fatal(err)
	}
	sum := func() (out [sha256.Size]byte) {
		f, err := os.Open("/proc/self/fd/" + strconv.Itoa(int(one.file.Fd())))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil {
			t.Fatal(err)
		}
		return [sha256.Size]byte(h.Sum(nil))
	}
	before := sum()
	for range 2 {
		for _, user := range []string{defaultUser, "root"} {
			if user == "root" && mappingKind() == mapSingle {
				continue
			}
			sb := create(t, p, providers.CreateRequest{User: user})
			out, _ := sh(t, sb, `for f in /proc/1/exe /proc/1/map_files/* /proc/1/root/proc/1/exe; do
				(echo x >>"$f") 2>/dev/null && echo "wrote $f"
				cat "$f" 2>/dev/null | head -c 1 | grep -q . && echo "read $f"
			done; echo done`)
			if out != "done\n" {
				t.Errorf("as %s: %s", user, out)
			}
			r, err := p.Report(t.Context(), sb.ID)
			if err != nil || r.Executable != one.how {
				t.Errorf("report says %+v, %v", r, err)
			}
		}
	}
	if again, err := p.runtimeFor(); err != nil || again != one {
		t.Errorf("opened once more: %v, %v", again, err)
	}
	if sum() != before {
		t.Error("the executable has changed")
	}
}
