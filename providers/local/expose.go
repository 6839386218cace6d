//go:build linux

package local

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// neverExposed are trees of which nothing may be shown: they hold devices,
// sockets, kernel settings and boot files.
var neverExposed = []string{"/proc", "/sys", "/dev", "/run", "/var/run", "/boot"}

// exposedView checks paths that a sandbox is to show as they are on the host.
// A path that is, holds, or resolves to something that must stay hidden is
// E2011; state is the tree of the provider's own files, or empty. Beside a foreign
// tree nothing of the host is shown anyway.
func exposedView(paths []string, state string, foreign bool) ([]viewEntry, error) {
	var view []viewEntry
	for _, p := range paths {
		real, err := filepath.EvalSymlinks(p)
		if err != nil {
			return nil, errdefs.Wrap("E2011", "create sandbox", "expose "+p, err)
		}
		for _, q := range []string{filepath.Clean(p), real} {
			if why := mustHide(q, state); why != "" {
				return nil, &errdefs.Error{Code: "E2011", Op: "create sandbox", Message: "expose " + p + " is refused: " + why,
					Suggestion: "name the directory that is needed, no more"}
			}
		}
		fi, err := os.Lstat(real)
		if err != nil {
			return nil, errdefs.Wrap("E2011", "create sandbox", "expose "+p, err)
		}
		if !fi.IsDir() && !fi.Mode().IsRegular() {
			return nil, errdefs.New("E2011", "create sandbox", "expose "+p+" is refused: it is neither a directory nor a file")
		}
		if !foreign && inView(real) {
			continue // shown anyway
		}
		view = append(view, viewEntry{target: filepath.Clean(p)[1:], source: real, dir: fi.IsDir()})
	}
	return view, nil
}

// mustHide says why a path may not be shown; empty: it may.
func mustHide(path, state string) string {
	if !strings.HasPrefix(path, "/") {
		return "it is not absolute"
	}
	if path == "/" {
		return "it is everything"
	}
	for _, dir := range neverExposed {
		if within(path, dir) || within(dir, path) {
			return "it is or holds " + dir + ", or lies there"
		}
	}
	if state != "" && (within(path, state) || within(state, path)) {
		return "it is, holds or lies in the files of the provider"
	}
	for _, home := range homes() {
		if within(home, path) {
			return "it is or holds the home directory " + home
		}
	}
	for _, name := range []string{"tmp", "var/tmp", "home/user", "root", "etc", "home"} {
		if path == "/"+name {
			return "the sandbox has a directory of its own there"
		}
	}
	return ""
}

// within reports whether path is dir or lies below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

func inView(path string) bool {
	return slices.ContainsFunc(rootView(), func(e viewEntry) bool { return e.source != "" && e.dir && within(path, e.source) })
}

// homes lists the home directories of people and of root.
var homes = sync.OnceValue(func() []string {
	var out []string
	if h, err := os.UserHomeDir(); err == nil && h != "/" {
		out = append(out, filepath.Clean(h))
	}
	b, _ := os.ReadFile("/etc/passwd")
	for line := range strings.Lines(string(b)) {
		f := strings.Split(line, ":")
		if len(f) < 6 || !strings.HasPrefix(f[5], "/") || f[5] == "/" {
			continue
		}
		if uid, err := strconv.Atoi(f[2]); err == nil && (uid == 0 || uid >= 1000 && uid < 65534) {
			out = append(out, filepath.Clean(f[5]))
		}
	}
	return out
})

// stateTree is the provider's tree that holds the lock of a sandbox,
// <tree>/boxes/<id>/lock; empty without a lock.
func stateTree(lock *os.File) string {
	if lock == nil {
		return ""
	}
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(lock.Fd())))
	if err != nil {
		return ""
	}
	return filepath.Dir(filepath.Dir(filepath.Dir(path)))
}

// maxExposedWalk bounds the search for sockets, in files.
const maxExposedWalk = 20000

// socketWarnings names a socket in each exposed tree that has one: who listens
// there can be talked to from inside.
func socketWarnings(view []viewEntry) []string {
	var out []string
	for _, e := range view {
		if s := firstSocket(e.source); s != "" {
			out = append(out, fmt.Sprintf("the exposed %s holds the socket %s, whose server can be reached from inside", e.source, s))
		}
	}
	return out
}

var foundSockets sync.Map // path to the first socket below it

func firstSocket(dir string) string {
	if s, ok := foundSockets.Load(dir); ok {
		return s.(string)
	}
	found, n := "", 0
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if n++; n > maxExposedWalk {
			return fs.SkipAll
		}
		if err == nil && d.Type()&fs.ModeSocket != 0 {
			found = path
			return fs.SkipAll
		}
		return nil // what cannot be read here cannot be read inside either
	})
	foundSockets.Store(dir, found)
	return found
}
