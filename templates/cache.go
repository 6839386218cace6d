package templates

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Cache keeps what was fetched, in <cache>/templates:
//
//	trees/<digest>/   files, named by the digest of their content, which is checked at every use
//	refs/<hash>.json  what a reference stood for when it was last looked at
//	index/            the catalog
//
// Everything is written beside its place and renamed, so that programs can share a
// cache. Methods are safe for concurrent use.
type Cache struct {
	dir string

	mu   sync.Mutex      // guards good
	good map[string]bool // digests of trees that were checked since the cache was opened
}

// Entry is what the cache knows of a reference.
type Entry struct {
	Ref       string    `json:"ref"`            // without subdir: the whole repository or archive is kept
	Rev       string    `json:"rev,omitempty"`  // commit of git, digest of an artifact or archive
	Tag       string    `json:"tag,omitempty"`  // that a version stood for
	ETag      string    `json:"etag,omitempty"` // of an archive
	Digest    string    `json:"digest"`         // of the files
	Bytes     int64     `json:"bytes"`          // of the files
	Links     []string  `json:"links,omitempty"`
	Fetched   time.Time `json:"fetched"`             // when the files were fetched
	Checked   time.Time `json:"checked"`             // when the reference was last looked at
	Immutable bool      `json:"immutable,omitempty"` // it can stand for nothing else
}

// OpenCache returns the cache in a folder, which need not exist; empty:
// SANDBOX_CACHE_DIR, else the user's cache folder, as everything of this module.
func OpenCache(dir string) (*Cache, error) {
	if dir == "" {
		dir = os.Getenv("SANDBOX_CACHE_DIR")
	}
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return nil, errdefs.Wrap("E8007", "open template cache", "no folder for caches; set SANDBOX_CACHE_DIR", err)
		}
		dir = filepath.Join(user, "sandbox")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, errdefs.Wrap("E8007", "open template cache", dir, err)
	}
	return &Cache{dir: filepath.Join(abs, "templates"), good: map[string]bool{}}, nil
}

// List returns the entries, sorted by reference.
func (c *Cache) List() ([]Entry, error) {
	files, err := os.ReadDir(filepath.Join(c.dir, "refs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errdefs.Wrap("E2006", "list template cache", c.dir, err)
	}
	var out []Entry
	for _, f := range files {
		if e, ok := readEntry(filepath.Join(c.dir, "refs", f.Name())); ok {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b Entry) int { return strings.Compare(a.Ref, b.Ref) })
	return out, nil
}

// Clear removes the named references, as List writes them, and the files that no
// other one needs; without arguments everything, the catalog too. A [Resolved] made
// before loses its files. Names that are not there are no error.
func (c *Cache) Clear(refs ...string) error {
	c.mu.Lock()
	clear(c.good)
	c.mu.Unlock()
	if len(refs) == 0 {
		for _, part := range []string{"refs", "trees", "index", "tmp"} {
			if err := removeTree(filepath.Join(c.dir, part)); err != nil {
				return errdefs.Wrap("E2006", "clear template cache", c.dir, err)
			}
		}
		return nil
	}
	all, err := c.List()
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, e := range all {
		if !slices.Contains(refs, e.Ref) {
			keep[e.Digest] = true
		}
	}
	for _, e := range all {
		if !slices.Contains(refs, e.Ref) {
			continue
		}
		err := os.Remove(c.entryFile(e.Ref))
		if !keep[e.Digest] {
			err = errors.Join(ignoreGone(err), removeTree(c.tree(e.Digest)))
		}
		if err = ignoreGone(err); err != nil {
			return errdefs.Wrap("E2006", "clear template cache", e.Ref, err)
		}
	}
	return nil
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeTree takes a folder away in one step before it removes what is in it, so
// that nobody finds half of it.
func removeTree(dir string) error {
	away := fmt.Sprintf("%s.gone-%d-%d", dir, os.Getpid(), time.Now().UnixNano())
	if err := os.Rename(dir, away); err != nil {
		return ignoreGone(err)
	}
	return os.RemoveAll(away)
}

func (c *Cache) tree(digest string) string { return filepath.Join(c.dir, "trees", digest) }

func (c *Cache) entryFile(ref string) string {
	sum := sha256.Sum256([]byte(ref))
	return filepath.Join(c.dir, "refs", hex.EncodeToString(sum[:16])+".json")
}

// find returns the entry of a reference.
func (c *Cache) find(ref string) (Entry, bool) {
	e, ok := readEntry(c.entryFile(ref))
	return e, ok && e.Ref == ref
}

func readEntry(file string) (Entry, bool) {
	var e Entry
	data, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(data, &e) != nil {
		return Entry{}, false
	}
	raw, err := hex.DecodeString(e.Digest)
	return e, err == nil && len(raw) == sha256.Size
}

// open returns the files of an entry after checking that they are what they were.
// Damaged ones are removed.
func (c *Cache) open(e Entry) (fs.FS, error) {
	fsys := os.DirFS(c.tree(e.Digest))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.good[e.Digest] {
		return fsys, nil // a resolution asks several times
	}
	digest, _, err := treeDigest(fsys)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errdefs.New("E2006", "read template cache", fmt.Sprintf("the files of %s are gone", e.Ref))
	case err == nil && digest != e.Digest:
		err = fmt.Errorf("digest %s, not %s", digest, e.Digest)
	case err == nil:
		c.good[e.Digest] = true
		return fsys, nil
	}
	if rm := removeTree(c.tree(e.Digest)); rm != nil {
		err = errors.Join(err, rm)
	}
	return nil, errdefs.Wrap("E2006", "read template cache", fmt.Sprintf("the files of %s are damaged", e.Ref), err)
}

// store fills a folder, files it under its digest and records the entry.
func (c *Cache) store(e Entry, fill func(root *os.Root) (links []string, err error)) (Entry, error) {
	tmp := filepath.Join(c.dir, "tmp")
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return Entry{}, errdefs.Wrap("E2006", "write template cache", c.dir, err)
	}
	dir, err := os.MkdirTemp(tmp, "tree-")
	if err != nil {
		return Entry{}, errdefs.Wrap("E2006", "write template cache", c.dir, err)
	}
	defer os.RemoveAll(dir)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Entry{}, errdefs.Wrap("E2006", "write template cache", c.dir, err)
	}
	defer root.Close()
	if e.Links, err = fill(root); err != nil {
		return Entry{}, err
	}
	if e.Digest, e.Bytes, err = treeDigest(root.FS()); err != nil {
		return Entry{}, errdefs.Wrap("E2006", "write template cache", e.Ref, err)
	}
	if err := os.MkdirAll(filepath.Join(c.dir, "trees"), 0o700); err != nil {
		return Entry{}, errdefs.Wrap("E2006", "write template cache", c.dir, err)
	}
	if err := os.Rename(dir, c.tree(e.Digest)); err != nil {
		// Somebody has it already: it must be good, or go.
		if _, bad := c.open(e); bad != nil {
			err = os.Rename(dir, c.tree(e.Digest))
		} else {
			err = nil
		}
		if err != nil {
			return Entry{}, errdefs.Wrap("E2006", "write template cache", c.dir, err)
		}
	}
	e.Fetched = time.Now().UTC()
	e.Checked = e.Fetched
	return e, c.record(e)
}

// record writes an entry.
func (c *Cache) record(e Entry) error {
	data, err := json.MarshalIndent(e, "", "  ")
	if err == nil {
		err = writeFile(c.entryFile(e.Ref), data)
	}
	if err != nil {
		return errdefs.Wrap("E2006", "write template cache", c.dir, err)
	}
	return nil
}

// writeFile writes a file beside its place and renames it.
func writeFile(name string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
