//go:build linux

package local

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// settingSmallRuntime says whether pid 1 is the small runtime of this version
// where one is installed, see [InstallRuntime]: on, the default, or off.
const settingSmallRuntime = "small_runtime"

// runtimeFolder is the directory of the cache that holds installed runtimes.
const runtimeFolder = "runtime"

const modulePath = "github.com/agent-sandbox/sandbox-go"

// InstallRuntime copies the running program, which must be the command
// sandboxinit, to the cache below dir, where providers of the same version of
// this module find it: they start it as pid 1 in the place of their own program,
// which is larger and starts more slowly. An empty dir is the default of
// providers.Config. It returns the path of the copy. A program that was not built
// from a released or committed version of the module is E8007: nothing would tell
// whether its client fits.
func InstallRuntime(dir string) (string, error) {
	return installRuntime(dir, moduleVersion(), "/proc/self/exe")
}

func installRuntime(dir, version, program string) (path string, err error) {
	const op = "install runtime"
	if version == "" {
		return "", &errdefs.Error{Code: "E8007", Op: op, Message: "this program was not built from a released or committed version of " + modulePath,
			Suggestion: "build it with go run " + modulePath + "/runtime/cmd/sandboxinit in a module that requires a version; SANDBOX_RUNTIME_BINARY takes any"}
	}
	fail := func(err error) (string, error) {
		return "", &errdefs.Error{Code: "E8007", Op: op, Message: "keep the runtime in the cache", Err: err,
			Suggestion: "SANDBOX_CACHE_DIR names another directory"}
	}
	if dir == "" {
		if dir, err = defaultCache(); err != nil {
			return fail(err)
		}
	}
	at, err := openPrivate(filepath.Join(dir, runtimeFolder))
	if err != nil {
		return "", err
	}
	defer at.close()
	from, err := os.Open(program)
	if err != nil {
		return fail(err)
	}
	defer from.Close()
	tmp := ".new-" + randomText(12)
	to, err := at.open(tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o700)
	if err != nil {
		return fail(err)
	}
	// It gets its name when it is complete, also after a power failure.
	_, err = io.Copy(to, from)
	if err == nil {
		err = to.Chmod(0o555)
	}
	if err == nil {
		err = to.Sync()
	}
	err = errors.Join(err, to.Close())
	if err == nil {
		err = unix.Renameat(at.fd(), tmp, at.fd(), runtimeName(version))
	}
	if err != nil {
		_ = at.remove(tmp)
		return fail(err)
	}
	return filepath.Join(dir, runtimeFolder, runtimeName(version)), nil
}

func runtimeName(version string) string { return version + "-" + runtime.GOARCH }

func defaultCache() (string, error) {
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "sandbox"), err
}

// moduleVersion is the version of this module that the running program was
// built from; empty: it is not known, or it was changed since.
func moduleVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	m := &info.Main
	for _, d := range info.Deps {
		if d.Path == modulePath {
			m = d
		}
	}
	if m.Path != modulePath || m.Replace != nil || !strings.HasPrefix(m.Version, "v") ||
		strings.Contains(m.Version, "+dirty") || strings.ContainsAny(m.Version, "/\x00") {
		return ""
	}
	return m.Version
}

// runtimeFor opens what pid 1 of the provider's sandboxes executes: the
// configured program, the small runtime that is installed, or this program.
func (p *Provider) runtimeFor() (*executable, error) {
	if p.version != "" && os.Getenv(envRuntime) == "" {
		path, err := p.installedRuntime()
		if err == nil {
			var e *executable
			if e, err = openedExecutable(path); err == nil {
				return e, nil
			}
		}
		if !errors.Is(err, fs.ErrNotExist) {
			p.log.Debug("the installed runtime is not used", "err", err)
		}
	}
	return runtimeExecutable()
}

// installedRuntime is the path of the small runtime, unless somebody else
// could have put it there.
func (p *Provider) installedRuntime() (string, error) {
	dir := p.cache
	if dir == "" {
		var err error
		if dir, err = defaultCache(); err != nil {
			return "", fs.ErrNotExist
		}
	}
	dir = filepath.Join(dir, runtimeFolder)
	path := filepath.Join(dir, runtimeName(p.version))
	for _, c := range []struct {
		path string
		kind uint32
	}{{path, unix.S_IFREG}, {dir, unix.S_IFDIR}} {
		var st unix.Stat_t
		if err := unix.Lstat(c.path, &st); err != nil {
			return "", &fs.PathError{Op: "lstat", Path: c.path, Err: err}
		}
		if st.Mode&unix.S_IFMT != c.kind || st.Mode&0o022 != 0 || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
			return "", fmt.Errorf("%s: others could have written it", c.path)
		}
	}
	return path, nil
}
