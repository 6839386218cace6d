package policy

import (
	"fmt"
	"path"
	"strings"

	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// Files is what is said about files. All paths it is asked about are absolute
// and clean, and lead through no link: those of descriptors, as the kernel tells
// them. A nil *Files allows everything. It is immutable.
type Files struct {
	read, write []string // folders; nil: all
	deny        []*pattern
	links       bool
	maxBytes    int64
	maxEntries  int
}

// compileFiles returns nil when nothing is said.
func compileFiles(m *model.FilePolicy) (*Files, error) {
	f := &Files{read: m.Read, write: m.Write, links: m.FollowLinks == nil || *m.FollowLinks, maxBytes: m.MaxBytes, maxEntries: m.MaxEntries}
	if m.Read == nil && m.Write == nil && m.Deny == nil && m.FollowLinks == nil && m.MaxBytes == 0 && m.MaxEntries == 0 {
		return nil, nil
	}
	if err := checkFolders("files.read", m.Read); err != nil {
		return nil, err
	}
	if err := checkFolders("files.write", m.Write); err != nil {
		return nil, err
	}
	for _, w := range m.Write {
		if f.read != nil && !inside(w, f.read) {
			return nil, invalid("files.write: %q lies in no folder of files.read", w)
		}
	}
	switch {
	case m.MaxBytes < 0:
		return nil, invalid("files.max_bytes is negative: %d", m.MaxBytes)
	case m.MaxEntries < 0:
		return nil, invalid("files.max_entries is negative: %d", m.MaxEntries)
	}
	for _, text := range m.Deny {
		p, err := compilePattern(text)
		if err != nil {
			return nil, err
		}
		f.deny = append(f.deny, p)
	}
	return f, nil
}

func checkFolders(key string, folders []string) error {
	for _, p := range folders {
		switch {
		case !path.IsAbs(p):
			return invalid("%s: %q is not absolute", key, p)
		case path.Clean(p) != p:
			return invalid("%s: %q is not clean; write %q", key, p, path.Clean(p))
		}
	}
	return nil
}

// inside reports whether p is one of folders or lies in one.
func inside(p string, folders []string) bool {
	for _, f := range folders {
		if p == f || f == "/" || len(p) > len(f) && p[len(f)] == '/' && strings.HasPrefix(p, f) {
			return true
		}
	}
	return false
}

// gone is what the kernel adds to the path of something that was removed, d_path(9).
const gone = " (deleted)"

// Read refuses a path that must not be read, with a [*Refusal].
func (f *Files) Read(p string) error {
	if f == nil {
		return nil
	}
	if err := f.denied(p); err != nil {
		return err
	}
	if f.read != nil && !inside(p, f.read) {
		return refusePath("files.read is %s", quoted(f.read))
	}
	return nil
}

// Write refuses a path at which nothing must be made, changed or removed.
func (f *Files) Write(p string) error {
	if err := f.Read(p); err != nil || f == nil || f.write == nil {
		return err
	}
	if !inside(p, f.write) {
		return refusePath("files.write is %s", quoted(f.write))
	}
	return nil
}

func (f *Files) denied(p string) error {
	if !strings.HasPrefix(p, "/") {
		// Outside of what this process can see, or no path at all.
		return refusePath("files: the path cannot be told")
	}
	name, removed := strings.CutSuffix(p, gone)
	for _, d := range f.deny {
		if d.match(p) || removed && d.match(name) {
			return refusePath("files.deny %q", d.text)
		}
	}
	return nil
}

// Move refuses to bring what is at from, with all that lies below it, to the path
// to: both must be writable, and what is denied below from must stay denied.
func (f *Files) Move(from, to string) error {
	if err := f.Write(from); err != nil {
		return err
	}
	if err := f.Write(to); err != nil || f == nil {
		return err
	}
	for _, d := range f.deny {
		if !d.kept(from, to) {
			return refusePath("files.deny %q, which what is moved would leave", d.text)
		}
	}
	return nil
}

// FollowLinks reports whether a path may lead over links.
func (f *Files) FollowLinks() bool { return f == nil || f.links }

// Link refuses a path because it leads over a link.
func (f *Files) Link() error { return refusePath("files.follow_links false") }

// MaxBytes is how long a file may become that is written; 0: no limit.
func (f *Files) MaxBytes() int64 {
	if f == nil {
		return 0
	}
	return f.maxBytes
}

// Size refuses a file of n bytes to be written.
func (f *Files) Size(n int64) error {
	if f == nil || f.maxBytes == 0 || n <= f.maxBytes {
		return nil
	}
	return &Refusal{Code: "E8020", Rule: fmt.Sprintf("files.max_bytes %d", f.maxBytes), Limit: true}
}

// Entries refuses a listing, a search or an archive of n entries.
func (f *Files) Entries(n int) error {
	if f == nil || f.maxEntries == 0 || n <= f.maxEntries {
		return nil
	}
	return &Refusal{Code: "E8020", Rule: fmt.Sprintf("files.max_entries %d", f.maxEntries), Limit: true}
}

// MaxEntries is the most entries of one answer; def where nothing is said, or
// more than that.
func (f *Files) MaxEntries(def int) int {
	if f == nil || f.maxEntries == 0 {
		return def
	}
	return min(def, f.maxEntries)
}

func refusePath(format string, args ...any) error {
	return &Refusal{Code: "E8020", Rule: fmt.Sprintf(format, args...)}
}
