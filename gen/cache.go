package gen

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"hash"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/modfile"
)

// CacheDir is the folder where runs remember what they found up to date:
// sandboxgen in SANDBOX_CACHE_DIR or, when that is not set, in the folder
// sandbox of the user's cache. It is "" when there is no such folder.
func CacheDir() string {
	dir := os.Getenv("SANDBOX_CACHE_DIR")
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return ""
		}
		dir = filepath.Join(user, "sandbox")
	}
	if !filepath.IsAbs(dir) {
		return ""
	}
	return filepath.Join(dir, "sandboxgen")
}

// Bounds of the cache.
const (
	cacheFormat   = "sandboxgen cache 1"
	cacheAge      = 30 * 24 * time.Hour // entries not used for longer go
	cacheEntries  = 2000                // the oldest beyond these go
	cacheTrim     = 24 * time.Hour      // how often that is looked at
	cacheTouch    = time.Hour           // how exactly the last use is known
	cacheMaxEntry = 1 << 20             // bytes of an entry

	maxClosureFiles = 5000     // of packages that one imports
	maxHashedFile   = 16 << 20 // bytes
)

// cache remembers of packages that their output is what a run would give. An
// entry is found by a hash of everything that decides about the output and
// holds hashes of the output, never its text: a wrong entry could keep a file
// from being written, not write one. Whatever is not understood is a miss.
type cache struct {
	dir  string
	g    *generator
	once sync.Once
	base []byte // hash of what all packages of the run have in common
	err  error  // why base could not be found
	mods []moduleRoot
	dirs map[string]*depDir // by folder
}

// moduleRoot is a folder whose packages can change at any time, unlike those in
// the module cache.
type moduleRoot struct {
	path string // prefix of the import paths; "" for a vendor folder
	dir  string
}

// depDir is a folder of imported source.
type depDir struct {
	sum     [sha256.Size]byte
	imports []string
	files   int
}

// cacheEntry is what is stored of a package.
type cacheEntry struct {
	Key       string            `json:"key"`
	Path      string            `json:"path"`
	Files     map[string]string `json:"files"` // name → hex SHA-256
	Functions []Function        `json:"functions"`
}

func newCache(g *generator, dir string) *cache {
	return &cache{dir: dir, g: g, dirs: make(map[string]*depDir)}
}

// errUnsure is a situation in which the cache is not used.
type errUnsure string

func (e errUnsure) Error() string { return string(e) }

// key hashes what decides about the output of a package.
func (c *cache) key(d *sourceDir) (string, error) {
	c.once.Do(func() { c.base, c.err = c.common() })
	if c.err != nil {
		return "", c.err
	}
	root := slices.IndexFunc(c.mods, func(m moduleRoot) bool { return m.path != "" && within(m.dir, d.path) })
	if root < 0 {
		return "", errUnsure(d.path + " lies in no known module")
	}
	h := sha256.New()
	h.Write(c.base)
	record(h, "package", d.path)
	if err := c.ancestors(h, d.path); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if !isOutputName(e.Name()) { // what an earlier run wrote does not count, even its absence
			record(h, "entry", e.Name(), e.Type().String())
		}
	}
	var imports []string
	tree := false
	for _, f := range d.files {
		record(h, "file", f.name, string(f.sum[:]))
		imports = append(imports, importsOf(f.ast)...)
		tree = tree || f.embeds
	}
	if tree {
		if err := listTree(h, d.path); err != nil {
			return "", err
		}
	}
	if err := c.closure(h, imports); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// record writes fields so that no two lists of them look the same.
func record(h hash.Hash, fields ...string) {
	for _, f := range fields {
		fmt.Fprintf(h, "%d:%s,", len(f), f)
	}
	io.WriteString(h, "\n")
}

func within(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// listTree records the names below a folder, for directives and comments that
// name files.
func listTree(h hash.Hash, dir string) error {
	n := 0
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if n++; n > maxClosureFiles {
			return errUnsure("too many files below " + dir)
		}
		if !isOutputName(e.Name()) {
			record(h, "tree", path, e.Type().String())
		}
		return nil
	})
}

// ancestors records which folders from the module's root to dir hold a go.mod:
// a new one takes the folder out of the module.
func (c *cache) ancestors(h hash.Hash, dir string) error {
	for _, m := range c.mods {
		if !within(m.dir, dir) {
			continue
		}
		for at := dir; at != m.dir && len(at) > len(m.dir); at = filepath.Dir(at) {
			_, err := os.Stat(filepath.Join(at, "go.mod"))
			switch {
			case err == nil:
				record(h, "go.mod", at)
			case !errors.Is(err, fs.ErrNotExist):
				return err
			}
		}
	}
	return nil
}

// closure records the source of every package that imports lead to, as far as
// it can change without go.mod or go.sum changing.
func (c *cache) closure(h hash.Hash, imports []string) error {
	seen := make(map[string]bool)
	files := 0
	for len(imports) > 0 {
		path := imports[0]
		imports = imports[1:]
		if seen[path] {
			continue
		}
		seen[path] = true
		for _, m := range c.mods {
			rest, ok := strings.CutPrefix(path, m.path)
			if !ok || m.path != "" && rest != "" && rest[0] != '/' {
				continue
			}
			dir := filepath.Join(m.dir, filepath.FromSlash(rest))
			d, err := c.dependency(dir)
			if err != nil {
				return err
			}
			if d == nil {
				record(h, "absent", path, dir)
				continue
			}
			if files += d.files; files > maxClosureFiles {
				return errUnsure("too many imported files")
			}
			record(h, "import", path, dir, string(d.sum[:]))
			if err := c.ancestors(h, dir); err != nil {
				return err
			}
			imports = append(imports, d.imports...)
		}
	}
	return nil
}

// dependency reads one folder; nil when it does not exist.
func (c *cache) dependency(dir string) (*depDir, error) {
	if d, ok := c.dirs[dir]; ok {
		return d, nil
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		c.dirs[dir] = nil
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	d := new(depDir)
	h := sha256.New()
	fset := token.NewFileSet()
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() || strings.HasSuffix(name, "_test.go") {
			continue
		}
		src, err := readBounded(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		record(h, name, string(src))
		if filepath.Ext(name) != ".go" {
			continue
		}
		d.files++
		if f, _ := parser.ParseFile(fset, name, src, parser.ImportsOnly|parser.SkipObjectResolution); f != nil {
			for _, p := range importsOf(f) {
				if p == "C" { // its types come from headers that can lie anywhere
					return nil, errUnsure(dir + ` imports "C"`)
				}
				d.imports = append(d.imports, p)
			}
		}
	}
	h.Sum(d.sum[:0])
	c.dirs[dir] = d
	return d, nil
}

func readBounded(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxHashedFile {
		return nil, errUnsure(path + " is no file to be hashed")
	}
	return os.ReadFile(path)
}

// common hashes what is the same for all packages of a run and finds the
// modules.
func (c *cache) common() ([]byte, error) {
	h := sha256.New()
	id, err := toolID()
	if err != nil {
		return nil, err
	}
	record(h, cacheFormat, id)
	o := c.g.opts
	record(h, "options", o.Dir, o.Tags, o.Mod)
	if err := c.environment(h); err != nil {
		return nil, err
	}
	if err := c.modules(h); err != nil {
		return nil, err
	}
	return h.Sum(nil), nil
}

// notInput are variables of the go command that differ from run to run, or from
// user to user, and decide about nothing here.
var notInput = []string{
	"GOFILE", "GOLINE", "GOPACKAGE", "GOCACHE", "GOTMPDIR", "GOMAXPROCS", "GOCOVERDIR", "GOTRACEBACK", "GOGC", "GOMEMLIMIT", "GOBIN",
}

// environment records what the go command takes from its surroundings.
func (c *cache) environment(h hash.Hash) error {
	for _, name := range []string{"HOME", "XDG_CONFIG_HOME", "AppData", "PATH"} {
		if c.getenv(name) != os.Getenv(name) {
			return errUnsure("the environment of the go command is another one")
		}
	}
	switch driver := c.getenv("GOPACKAGESDRIVER"); driver {
	case "off":
	case "":
		if _, err := exec.LookPath("gopackagesdriver"); err == nil {
			return errUnsure("there is a gopackagesdriver")
		}
	default:
		return errUnsure("GOPACKAGESDRIVER is set")
	}
	var vars []string
	for _, kv := range c.environ() {
		name, _, _ := strings.Cut(kv, "=")
		if (strings.HasPrefix(name, "GO") || strings.HasPrefix(name, "CGO_")) && !slices.Contains(notInput, name) {
			vars = append(vars, kv)
		}
	}
	slices.Sort(vars)
	record(h, slices.Compact(vars)...)
	settings, err := c.settingsFile()
	if err != nil {
		return err
	}
	record(h, "GOENV", string(settings))
	if c.goSetting(settings, "GO111MODULE") == "off" {
		return errUnsure("modules are off")
	}
	for _, flag := range strings.Fields(c.goSetting(settings, "GOFLAGS")) {
		name, _, _ := strings.Cut(strings.TrimLeft(flag, "'\"-"), "=")
		if slices.Contains([]string{"modfile", "overlay", "toolexec", "C", "compiler", "gccgoflags"}, name) {
			return errUnsure("GOFLAGS has -" + name)
		}
	}
	return c.goCommand(h)
}

func (c *cache) environ() []string {
	if c.g.opts.Env != nil {
		return c.g.opts.Env
	}
	return os.Environ()
}

// getenv is a variable of the go command's environment; the last one counts.
func (c *cache) getenv(name string) string {
	if c.g.opts.Env == nil {
		return os.Getenv(name)
	}
	for _, kv := range slices.Backward(c.g.opts.Env) {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// settingsFile is the content of the file that go env -w writes.
func (c *cache) settingsFile() ([]byte, error) {
	path := c.getenv("GOENV")
	if path == "off" {
		return nil, nil
	}
	if path == "" {
		dir, err := os.UserConfigDir()
		if err != nil {
			return nil, nil // the go command has no such file then
		}
		path = filepath.Join(dir, "go", "env")
	}
	return readIfThere(path)
}

func readIfThere(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// goSetting is a setting as go env shows it.
func (c *cache) goSetting(settings []byte, name string) string {
	if v := c.getenv(name); v != "" {
		return v
	}
	value := ""
	for line := range strings.Lines(string(settings)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), name+"="); ok {
			value = v
		}
	}
	return value
}

// goCommand records which go command answers questions.
func (c *cache) goCommand(h hash.Hash) error {
	found, err := exec.LookPath("go")
	if err != nil {
		return err
	}
	path, err := filepath.EvalSymlinks(found)
	if err != nil {
		return err
	}
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, 2)
	if _, err := io.ReadFull(f, head); err != nil {
		return err
	}
	if string(head) == "#!" {
		return errUnsure("go is a script") // which may choose by anything
	}
	record(h, "go", found, path, fmt.Sprint(st.Size()), st.ModTime().UTC().Format(time.RFC3339Nano))
	roots := []string{filepath.Dir(filepath.Dir(path))}
	if r := c.getenv("GOROOT"); r != "" {
		roots = append(roots, r)
	}
	for _, root := range roots {
		version, err := os.ReadFile(filepath.Join(root, "VERSION"))
		if err != nil {
			return err
		}
		if !bytes.HasPrefix(version, []byte("go1")) {
			return errUnsure("the go command is no release")
		}
		settings, err := readIfThere(filepath.Join(root, "go.env"))
		if err != nil {
			return err
		}
		record(h, "root", root, string(version), string(settings))
	}
	return nil
}

// modules finds the folders of source that can change and records the files
// that say so.
func (c *cache) modules(h hash.Hash) error {
	settings, err := c.settingsFile()
	if err != nil {
		return err
	}
	work := c.goSetting(settings, "GOWORK")
	if work == "" {
		work = findUp(c.g.opts.Dir, "go.work")
	}
	var dirs []string
	if work != "" && work != "off" {
		text, err := c.recordFile(h, work)
		if err != nil {
			return err
		}
		if _, err := c.recordFile(h, strings.TrimSuffix(work, ".work")+".work.sum"); err != nil {
			return err
		}
		f, err := modfile.ParseWork(work, text, nil)
		if err != nil {
			return err
		}
		base := filepath.Dir(work)
		for _, u := range f.Use {
			dirs = append(dirs, absolute(base, u.Path))
		}
		c.replaced(base, f.Replace)
		c.vendor(h, base)
	} else {
		mod := findUp(c.g.opts.Dir, "go.mod")
		if mod == "" {
			return errUnsure("no go.mod")
		}
		dirs = append(dirs, filepath.Dir(mod))
		c.vendor(h, filepath.Dir(mod))
	}
	for _, dir := range dirs {
		f, err := c.module(h, dir)
		if err != nil {
			return err
		}
		if f == nil || f.Module == nil {
			return errUnsure(dir + " has no module")
		}
		c.add(f.Module.Mod.Path, dir)
		c.replaced(dir, f.Replace)
	}
	for _, m := range c.mods {
		if m.path != "" && !slices.Contains(dirs, m.dir) {
			if _, err := c.module(h, m.dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// add notes a root; links are followed, because the go command answers with
// real paths.
func (c *cache) add(path, dir string) {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	c.mods = append(c.mods, moduleRoot{path, dir})
}

func (c *cache) replaced(base string, rs []*modfile.Replace) {
	for _, r := range rs {
		if r.New.Version == "" {
			c.add(r.Old.Path, absolute(base, r.New.Path))
		}
	}
}

func (c *cache) vendor(h hash.Hash, dir string) {
	dir = filepath.Join(dir, "vendor")
	if _, err := os.Stat(dir); err == nil {
		record(h, "vendor", dir)
		c.mods = append(c.mods, moduleRoot{"", dir})
	}
}

// module records a module's files and parses its go.mod; nil when it has none.
func (c *cache) module(h hash.Hash, dir string) (*modfile.File, error) {
	if _, err := c.recordFile(h, filepath.Join(dir, "go.sum")); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "go.mod")
	text, err := c.recordFile(h, path)
	if err != nil || text == nil {
		return nil, err
	}
	return modfile.Parse(path, text, nil)
}

// recordFile records a file, or that it does not exist.
func (c *cache) recordFile(h hash.Hash, path string) ([]byte, error) {
	text, err := readIfThere(path)
	if err == nil {
		record(h, "settings", path, fmt.Sprint(text != nil), string(text))
	}
	return text, err
}

func absolute(base, path string) string {
	path = filepath.FromSlash(path)
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(base, path)
}

// findUp looks for a file in dir and the folders above it.
func findUp(dir, name string) string {
	for {
		path := filepath.Join(dir, name)
		if st, err := os.Stat(path); err == nil && !st.IsDir() {
			return path
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}
		dir = parent
	}
}

// toolID is the build id of this program, which changes with every change of
// it.
var toolID = sync.OnceValues(func() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	id, err := buildID(f)
	if err == nil && id == "" {
		err = errUnsure("this program has no build id")
	}
	return id, err
})

// buildID reads what the linker left: a note in ELF files, elsewhere a marked
// text near the start. See cmd/internal/buildid.
func buildID(r io.ReaderAt) (string, error) {
	if f, err := elf.NewFile(r); err == nil {
		s := f.Section(".note.go.buildid")
		if s == nil {
			return "", nil
		}
		note, err := s.Data()
		if err != nil || len(note) < 16 {
			return "", err
		}
		size := f.ByteOrder.Uint32(note[4:])
		if f.ByteOrder.Uint32(note) != 4 || string(note[12:16]) != "Go\x00\x00" || uint64(size) > uint64(len(note)-16) {
			return "", nil
		}
		return string(note[16 : 16+size]), nil
	}
	head := make([]byte, 64<<10)
	n, err := r.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return "", err
	}
	_, rest, ok := bytes.Cut(head[:n], []byte("\xff Go build ID: \""))
	if !ok {
		return "", nil
	}
	id, _, ok := bytes.Cut(rest, []byte("\"\n \xff"))
	if !ok {
		return "", nil
	}
	return string(id), nil
}

// lookup returns a package whose output on disk is what a run would give; nil
// when that is not known.
func (c *cache) lookup(key string, d *sourceDir) *Package {
	path := c.entryPath(key)
	st, err := os.Stat(path)
	if err != nil || st.Size() > cacheMaxEntry {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var e cacheEntry
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	if dec.Decode(&e) != nil || e.Key != key || len(e.Files) != len(d.owned) || len(e.Files) == 0 {
		return nil
	}
	p := &Package{Path: e.Path, Dir: d.path, Functions: e.Functions}
	for _, path := range d.owned {
		content, err := os.ReadFile(path)
		name := filepath.Base(path)
		if err != nil || e.Files[name] != sumText(content) {
			return nil
		}
		p.Files = append(p.Files, File{Name: name, Content: content, previous: content})
	}
	if time.Since(st.ModTime()) > cacheTouch {
		now := time.Now()
		_ = os.Chtimes(path, now, now) // an entry that seems older only goes sooner
	}
	return p
}

func sumText(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func (c *cache) entryPath(key string) string { return filepath.Join(c.dir, key[:2], key) }

// store remembers what a run found. What goes wrong is no fault of the run.
func (c *cache) store(key string, p *Package) {
	e := cacheEntry{Key: key, Path: p.Path, Files: make(map[string]string), Functions: p.Functions}
	for _, f := range p.Files {
		e.Files[f.Name] = sumText(f.Content)
	}
	text, err := json.Marshal(e)
	if err == nil && len(text) <= cacheMaxEntry {
		path := c.entryPath(key)
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			err = writeFile(path, text)
		}
	}
	if err == nil {
		err = c.trim(time.Now())
	}
	if err != nil {
		c.g.logf("cache: %v", err)
	}
}

// trim removes entries that were not used for long, and the oldest of too many.
func (c *cache) trim(now time.Time) error {
	stamp := filepath.Join(c.dir, "trimmed")
	if st, err := os.Stat(stamp); err == nil && now.Sub(st.ModTime()).Abs() < cacheTrim {
		return nil
	}
	if err := writeFile(stamp, []byte(now.UTC().Format(time.RFC3339)+"\n")); err != nil {
		return err
	}
	type entry struct {
		path string
		used time.Time
	}
	var entries []entry
	err := filepath.WalkDir(c.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || len(e.Name()) != 2*sha256.Size {
			return nil // not ours, or gone
		}
		if info, err := e.Info(); err == nil {
			entries = append(entries, entry{path, info.ModTime()})
		}
		return nil
	})
	slices.SortFunc(entries, func(a, b entry) int { return b.used.Compare(a.used) })
	for i, e := range entries {
		if i >= cacheEntries || now.Sub(e.used) > cacheAge {
			if gone := os.Remove(e.path); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
				err = errors.Join(err, gone)
			}
		}
	}
	return err
}
