//go:build linux

package local

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// A viewEntry is one name of the root view: a tree or file of the host that is
// shown read-only, or a link.
type viewEntry struct {
	target string // relative to the new root
	source string // host path; empty: a link
	link   string // what the link says
	dir    bool
	device bool // keeps device nodes usable
}

// rootView lists what of the host a sandbox shows. It is an allowlist: a list
// of what to hide would fail on links, on paths that do not exist yet, and on
// the next tool's credentials. The host is looked at once per process.
var rootView = sync.OnceValue(func() []viewEntry {
	return append(append(systemView("/"), etcView("/")...), deviceView()...)
})

// systemView is /usr and what top-level names of the host lead into it.
func systemView(root string) []viewEntry {
	view := []viewEntry{{target: "usr", source: filepath.Join(root, "usr"), dir: true}}
	for _, name := range []string{"bin", "sbin", "lib", "lib64", "lib32", "libx32"} {
		path := filepath.Join(root, name)
		fi, err := os.Lstat(path)
		switch {
		case err != nil:
		case fi.Mode()&fs.ModeSymlink != 0:
			if link, err := os.Readlink(path); err == nil {
				view = append(view, viewEntry{target: name, link: link})
			}
		case fi.IsDir():
			view = append(view, viewEntry{target: name, source: path, dir: true})
		}
	}
	return view
}

// etcNames is what of /etc is shown as the host has it. Everything else that a
// program needs of /etc is written, see etcFiles.
var etcNames = []string{
	"ssl/certs", "ca-certificates", "ca-certificates.conf", "pki",
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "mime.types",
	"protocols", "services", "terminfo", "localtime",
}

func etcView(root string) []viewEntry {
	var view []viewEntry
	for _, name := range etcNames {
		e := viewEntry{target: "etc/" + name, source: filepath.Join(root, "etc", name)}
		fi, err := os.Lstat(e.source)
		if err == nil && fi.Mode()&fs.ModeSymlink != 0 {
			if e.source, err = filepath.EvalSymlinks(e.source); err != nil {
				continue
			}
			if strings.HasPrefix(e.source, "/usr/") {
				view = append(view, viewEntry{target: e.target, link: e.source})
				continue
			}
			fi, err = os.Lstat(e.source)
		}
		if err != nil || !fi.IsDir() && !fi.Mode().IsRegular() {
			continue
		}
		e.dir = fi.IsDir()
		view = append(view, e)
	}
	if _, err := os.Stat(filepath.Join(root, "usr/lib/os-release")); err == nil {
		view = append(view, viewEntry{target: "etc/os-release", link: "../usr/lib/os-release"})
	}
	return view
}

func deviceView() []viewEntry {
	var view []viewEntry
	for _, name := range existing("/dev/", []string{"null", "zero", "full", "random", "urandom", "tty"}) {
		view = append(view, viewEntry{target: "dev/" + name, source: "/dev/" + name, device: true})
	}
	return view
}

// procCovers is what of /proc is made read-only, procMasks what is emptied.
// Both are cut down to what this kernel has.
var procCovers = sync.OnceValue(func() []string {
	return existing("/proc/", []string{"sys", "irq", "bus", "fs", "asound", "sysrq-trigger"})
})

var procMasks = sync.OnceValue(func() []string {
	return existing("/proc/", []string{
		"kcore", "kmsg", "keys", "key-users", "timer_list", "kallsyms", "kpageflags", "kpagecount",
		"kpagecgroup", "vmallocinfo", "slabinfo", "pagetypeinfo", "interrupts", "latency_stats",
		"sched_debug", "config.gz", "acpi", "scsi",
	})
})

func existing(prefix string, names []string) []string {
	var out []string
	for _, name := range names {
		if _, err := os.Lstat(prefix + name); err == nil {
			out = append(out, name)
		}
	}
	return out
}
