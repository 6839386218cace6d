package sandboxfn

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// asNobody runs f in a thread that may not write to what it has no permission
// for.
func asNobody(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // it ends with the goroutine
		if os.Geteuid() == 0 {
			syscall.RawSyscall(syscall.SYS_SETFSUID, 65534, 0, 0)
		}
		f()
	}()
	<-done
}

// A directory that may not be written is put into its place, also over another.
func TestReplaceReadOnlyDir(t *testing.T) {
	dir := t.TempDir()
	for p := dir; p != os.TempDir() && p != "/"; p = filepath.Dir(p) {
		os.Chmod(p, 0o777)
	}
	asNobody(func() {
		to := filepath.Join(dir, "to")
		for range 2 {
			temp, err := os.MkdirTemp(dir, "")
			if err != nil {
				t.Error(err)
				return
			}
			from := filepath.Join(temp, "new")
			os.Mkdir(from, 0o755)
			os.WriteFile(filepath.Join(from, "f"), nil, 0o444)
			os.Chmod(from, 0o555)
			if err := replace(from, to, filepath.Join(temp, "old")); err != nil {
				t.Error(err)
			}
			if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o555 {
				t.Errorf("%v, %v", info, err)
			}
			if err := removeTree(temp); err != nil {
				t.Error(err)
			}
		}
		removeTree(to)
	})
}
