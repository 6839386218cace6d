package templates

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// maxBases is how many templates a template can be based on, one on the other.
const maxBases = 5

// ResolveOptions are the settings of [Resolve] and [LoadIndex]. The zero value is
// good.
type ResolveOptions struct {
	Dir        string       // what ./dir is relative to; empty: the working folder
	CacheDir   string       // as for [OpenCache]
	Index      string       // address or file of the catalog; empty: SANDBOX_TEMPLATE_INDEX, else none
	Offline    bool         // what is not in the cache cannot be had
	Refresh    bool         // ask for the catalog however fresh the copy is
	HTTPClient *http.Client // for catalogs, archives and registries; nil: the default one
	Git        string       // program; empty: git
}

// Resolved is a template with everything that it is based on. It can be read by
// several goroutines at once.
type Resolved struct {
	Template *model.Template // joined; its base is none or an image
	Layers   []Layer         // the template itself, what it is based on, and so on
	Notices  []string        // what a person should know, such as an old copy that was used
}

// Layer is one template of a chain.
type Layer struct {
	Ref      string          // where it was found
	Rev      string          // commit of git, or digest of an archive or artifact; empty for folders
	Digest   string          // of the files in the cache; empty for folders and built-in ones
	Dir      string          // its folder on this machine; empty for built-in ones
	Template *model.Template // as its own file says it
	files    fs.FS
}

// FS is the folder of the layer.
func (l Layer) FS() fs.FS { return l.files }

// FS holds the sources of the copy steps of the joined template, and is what a
// Dockerfile of it is built in: the files of the template, and below .base/1,
// .base/2 and so on those of the templates that it is based on.
func (r *Resolved) FS() fs.FS { return layeredFS(r.Layers) }

// Resolve finds the template that a reference names (see [ParseRef]) and joins it
// with those that it is based on (see [Merge]), at most 5.
//
// What comes over the network is kept in the cache: commits of git and digests are
// fetched once, names that can change are looked at every time, and when that fails
// the copy is used with a notice. A template that came over the network can be based
// on others in its own repository and on what comes over the network, not on folders
// and servers of this machine.
//
// Errors: E2001 for what is not there, E2004 with all mistakes of a file as an
// [*Invalid], E2005 when fetching fails, E2006 for archives that are refused.
// Cancelling ctx ends git too. Resolve is safe for concurrent use, by several
// programs too.
func Resolve(ctx context.Context, ref string, o *ResolveOptions) (*Resolved, error) {
	r, err := o.resolver()
	if err != nil {
		return nil, err
	}
	out := &Resolved{}
	var parent *found
	seen := map[string]bool{}
	var chain []string
	for next := ref; next != "" || parent == nil; { // an empty one is a mistake of the caller
		parsed, err := ParseRef(next)
		if err != nil {
			e := &errdefs.Error{Code: "E2001", Op: "resolve template", Message: fmt.Sprintf("%q: %v", next, err)}
			if next == "" {
				e.Suggestion = "name a template, or give a folder such as ./dir"
			}
			return nil, e
		}
		f, err := r.locate(ctx, parsed, parent)
		if err != nil {
			return nil, err
		}
		chain = append(chain, f.layer.Ref)
		if seen[f.key] {
			return nil, errdefs.New("E2004", "resolve template", "templates are based on each other: "+strings.Join(chain, " → "))
		}
		seen[f.key] = true
		if len(chain) > maxBases+1 {
			return nil, errdefs.New("E2004", "resolve template", fmt.Sprintf("more than %d templates are based on each other: %s", maxBases, strings.Join(chain, " → ")))
		}
		if f.layer.Template, err = load(f.layer.files, f.name, f.show); err != nil {
			return nil, f.explain(err)
		}
		if t := f.layer.Template; t.Version == "" && f.tag != "" {
			t.Version = strings.TrimPrefix(versionOf(f.tag, parsed.Subdir), "v")
		}
		if len(chain) > 1 && f.layer.Template.Dockerfile != "" && out.Layers[0].Template.Dockerfile == "" {
			return nil, &errdefs.Error{Code: "E2004", Op: "resolve template", Message: fmt.Sprintf("%s has a Dockerfile, which says nothing that can be built upon", f.layer.Ref),
				Suggestion: "give an image it was built to as base.image"}
		}
		out.Layers = append(out.Layers, f.layer)
		next, parent = f.layer.Template.Base.From, f
	}
	out.Template = joined(out.Layers)
	out.Notices = r.notices
	var problems []Problem
	check(out.Template, func(_, message, hint string) {
		problems = append(problems, Problem{File: strings.Join(chain, " → "), Message: message, Hint: hint})
	})
	if err := invalid(problems); err != nil {
		return nil, err
	}
	return out, nil
}

func joined(layers []Layer) *model.Template {
	n := len(layers) - 1
	t := layers[n].Template.Clone()
	if n > 0 {
		t = moveSources(t, n)
	}
	for i := n - 1; i >= 0; i-- {
		child := layers[i].Template
		if i > 0 {
			child = moveSources(child, i)
		}
		t = Merge(t, child)
	}
	return t
}

// resolver is one call of Resolve.
type resolver struct {
	o       ResolveOptions
	cache   *Cache
	notices []string
}

func (o *ResolveOptions) resolver() (*resolver, error) {
	r := &resolver{}
	if o != nil {
		r.o = *o
	}
	if r.o.Git == "" {
		r.o.Git = "git"
	}
	if r.o.Index == "" {
		r.o.Index = os.Getenv("SANDBOX_TEMPLATE_INDEX")
	}
	var err error
	r.cache, err = OpenCache(r.o.CacheDir)
	return r, err
}

func (r *resolver) notice(format string, args ...any) {
	r.notices = append(r.notices, fmt.Sprintf(format, args...))
}

// found is a place in which a template should be.
type found struct {
	layer Layer
	key   string // the same for the same place
	name  string // of the folder
	tag   string
	tree  fs.FS  // whole repository or archive; nil for folders
	sub   string // folder in it
	local bool   // of this machine, so that it may name others on it
	links []string
}

// show names a file of the place for messages.
func (f *found) show(file string) string {
	if f.layer.Dir != "" && f.tree == nil {
		return filepath.Join(f.layer.Dir, file)
	}
	return f.layer.Ref + "/" + file
}

// explain adds to an error that links were left out, where that may be the reason.
func (f *found) explain(err error) error {
	if len(f.links) == 0 {
		return err
	}
	for _, l := range f.links {
		if rel, ok := strings.CutPrefix(l, f.sub+"/"); ok || f.sub == "" {
			if f.sub == "" {
				rel = l
			}
			return fmt.Errorf("%w\n(links are left out of templates; %s is one)", err, rel)
		}
	}
	return err
}

// locate finds the place that a reference of a template, or of the user when parent
// is nil, names.
func (r *resolver) locate(ctx context.Context, ref Ref, parent *found) (*found, error) {
	if parent != nil && !parent.local && ref.local() && (ref.Source != SourceFolder || path.IsAbs(ref.Path)) {
		return nil, errdefs.New("E2004", "resolve template", fmt.Sprintf("%s, which came over the network, is based on %s of this machine", parent.layer.Ref, ref))
	}
	switch ref.Source {
	case SourceFolder:
		if parent != nil && parent.tree != nil && !path.IsAbs(ref.Path) {
			return r.inside(ref, parent)
		}
		return r.folder(ref, parent)
	case SourceFile:
		name := r.absolute(ref.Path, parent)
		if parent != nil && parent.tree != nil && !path.IsAbs(ref.Path) {
			return nil, errdefs.New("E2004", "resolve template", fmt.Sprintf("%s is based on %s, an archive in an archive", parent.layer.Ref, ref))
		}
		e, err := r.cache.file(name)
		if err != nil {
			return nil, err
		}
		return r.cached(e, ref, name)
	case SourceName:
		return r.named(ctx, ref)
	case SourceGit:
		return r.git(ctx, ref, "")
	case SourceArchive:
		key := redactURL(ref.URL)
		e, err := r.moving(ctx, key, func(old Entry) (Entry, error) { return r.cache.download(ctx, r.client(), ref.URL, old) })
		if err != nil {
			return nil, err
		}
		return r.cached(e, ref, strings.TrimSuffix(archives.ReplaceAllString(path.Base(ref.URL), ""), "."))
	}
	key := "oci://" + ref.Image
	e, err := r.moving(ctx, key, func(old Entry) (Entry, error) {
		return r.cache.artifact(ctx, ref.Image, r.client().Transport, old)
	})
	if err != nil {
		return nil, err
	}
	return r.cached(e, ref, path.Base(strings.FieldsFunc(ref.Image, func(c rune) bool { return c == ':' || c == '@' })[0]))
}

// local reports whether the reference names something of this machine.
func (r Ref) local() bool {
	switch r.Source {
	case SourceFolder, SourceFile:
		return true
	case SourceGit, SourceArchive:
		scheme, rest, _ := strings.Cut(r.URL, "://")
		host, _, _ := strings.Cut(rest, "/")
		return scheme == "file" || isLoopback(hostOf(host))
	case SourceOCI:
		host, _, _ := strings.Cut(r.Image, "/")
		return isLoopback(hostOf(host))
	}
	return false
}

// hostOf is the host of user@host:port.
func hostOf(authority string) string {
	_, host, ok := strings.Cut(authority, "@")
	if !ok {
		host = authority
	}
	if strings.HasPrefix(host, "[") {
		host, _, _ = strings.Cut(host[1:], "]")
		return host
	}
	host, _, _ = strings.Cut(host, ":")
	return host
}

func (r *resolver) absolute(p string, parent *found) string {
	dir := r.o.Dir
	if parent != nil && parent.layer.Dir != "" {
		dir = parent.layer.Dir
	}
	if !filepath.IsAbs(p) {
		p = filepath.Join(dir, p)
	}
	if abs, err := filepath.Abs(p); err == nil {
		return abs
	}
	return p
}

func (r *resolver) folder(ref Ref, parent *found) (*found, error) {
	dir := r.absolute(ref.Path, parent)
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = errors.New("not a folder")
	}
	if err != nil {
		return nil, &errdefs.Error{Code: "E2001", Op: "resolve template", Message: "folder " + dir, Err: err, Suggestion: "give a folder that holds a template.yaml"}
	}
	key := dir
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		key = real
	}
	return &found{layer: Layer{Ref: dir, Dir: dir, files: dirFS(dir)}, key: key, name: filepath.Base(dir), local: true}, nil
}

// inside is a folder of the repository or archive that its parent is in.
func (r *resolver) inside(ref Ref, parent *found) (*found, error) {
	sub := path.Join(parent.sub, ref.Path)
	if !fs.ValidPath(sub) {
		return nil, errdefs.New("E2004", "resolve template", fmt.Sprintf("%s is based on %s, which is outside of its repository", parent.layer.Ref, ref.Path))
	}
	f := *parent
	f.layer = Layer{Rev: parent.layer.Rev, Digest: parent.layer.Digest}
	return f.at(sub, r.cache.tree(parent.layer.Digest))
}

// at makes f the folder sub of its tree.
func (f *found) at(sub, dir string) (*found, error) {
	if sub == "" {
		sub = "."
	}
	files, err := fs.Sub(f.tree, sub)
	if err == nil {
		_, err = fs.ReadDir(files, ".")
	}
	base, _, _ := strings.Cut(f.key, "\x00")
	if err != nil {
		return nil, errdefs.Wrap("E2001", "resolve template", fmt.Sprintf("%s has no folder %s", base, sub), err)
	}
	f.layer.files, f.layer.Dir = files, filepath.Join(dir, sub)
	f.layer.Ref = base
	f.sub = ""
	if sub != "." {
		f.sub, f.name = sub, path.Base(sub)
		if i := strings.LastIndex(base, "@"); i > strings.LastIndex(base, "/") && i > 0 {
			f.layer.Ref = base[:i] + "//" + sub + base[i:]
		} else {
			f.layer.Ref = base + "//" + sub
		}
	}
	f.key = base + "\x00" + sub
	return f, nil
}

// cached is a place in the cache.
func (r *resolver) cached(e Entry, ref Ref, name string) (*found, error) {
	tree, err := r.cache.open(e)
	if err != nil {
		return nil, err
	}
	f := &found{layer: Layer{Rev: e.Rev, Digest: e.Digest}, key: e.Ref, name: strings.TrimSuffix(path.Base(name), ".git"), tag: e.Tag, tree: tree, local: ref.local(), links: e.Links}
	return f.at(ref.Subdir, r.cache.tree(e.Digest))
}

// named is a built-in template, or one of the catalog.
func (r *resolver) named(ctx context.Context, ref Ref) (*found, error) {
	if files, ok := builtin(ref.Name); ok {
		f := &found{layer: Layer{Ref: ref.Name, files: files}, key: "built-in " + ref.Name, name: ref.Name}
		if ref.Version != "" {
			t, err := load(files, ref.Name, f.show)
			if err != nil {
				return nil, err
			}
			if c, err := parseConstraint(ref.Version); err != nil || !c.has("v"+t.Version) {
				return nil, &errdefs.Error{Code: "E2001", Op: "resolve template", Message: fmt.Sprintf("the built-in template %s has version %s, not %s", ref.Name, t.Version, ref.Version), Suggestion: "leave the version out"}
			}
		}
		return f, nil
	}
	ix, err := r.index(ctx)
	if err != nil {
		return nil, err
	}
	e, ok := ix.Find(ref.Name)
	if !ok {
		return nil, r.noName(ref.Name, ix)
	}
	source, err := e.Source()
	if err != nil || e.Repo == "" {
		return nil, errdefs.New("E2001", "resolve template", fmt.Sprintf("the catalog has no repository for %s", ref.Name))
	}
	if u := r.o.Index; source.local() && strings.Contains(u, "://") && !isLoopback(hostOf(strings.SplitN(strings.SplitN(u, "://", 2)[1], "/", 2)[0])) {
		return nil, errdefs.New("E2007", "resolve template", fmt.Sprintf("the catalog names %s on this machine", source))
	}
	return r.git(ctx, source, ref.Version)
}

// git finds a template in a repository. The version, of a name, goes before the ref.
func (r *resolver) git(ctx context.Context, ref Ref, version string) (*found, error) {
	rev := ref.Rev
	if version != "" {
		rev = version
	}
	key := Ref{Source: SourceGit, URL: ref.URL, Rev: rev}.String()
	name := path.Base(ref.URL)
	if commitForm.MatchString(rev) {
		if e, ok := r.cache.find(key); ok {
			if f, err := r.cached(e, ref, name); err == nil {
				return f, nil
			}
		}
	}
	e, err := r.moving(ctx, key, func(old Entry) (Entry, error) { return r.fetchGit(ctx, ref, version, key, old) })
	if err != nil {
		return nil, err
	}
	return r.cached(e, ref, name)
}

func (r *resolver) fetchGit(ctx context.Context, ref Ref, version, key string, old Entry) (Entry, error) {
	if _, err := exec.LookPath(r.o.Git); err != nil {
		return Entry{}, &errdefs.Error{Code: "E2005", Op: "fetch template", Message: "git is not there", Suggestion: "install git, or give the address of an archive", Err: err}
	}
	tmp := filepath.Join(r.cache.dir, "tmp")
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return Entry{}, errdefs.Wrap("E2006", "write template cache", r.cache.dir, err)
	}
	g := git{program: r.o.Git, tmp: tmp}
	commit, tag := ref.Rev, ""
	if version != "" || !commitForm.MatchString(ref.Rev) {
		refs, err := g.list(ctx, ref.URL)
		if err != nil {
			return Entry{}, err
		}
		if commit, tag, err = refs.find(ref, version); err != nil {
			return Entry{}, err
		}
	}
	if old.Rev == commit {
		if _, err := r.cache.open(old); err == nil {
			old.Checked, old.Tag = time.Now().UTC(), tag
			return old, r.cache.record(old)
		}
	}
	// A commit is kept under its own name too: it may be fetched already.
	byCommit := Ref{Source: SourceGit, URL: ref.URL, Rev: commit}.String()
	e, ok := r.cache.find(byCommit)
	if ok {
		_, err := r.cache.open(e)
		ok = err == nil
	}
	if !ok {
		var err error
		e, err = r.cache.store(Entry{Ref: byCommit, Rev: commit, Immutable: true}, func(root *os.Root) ([]string, error) {
			return g.fetch(ctx, ref.URL, commit, root)
		})
		if err != nil {
			return Entry{}, err
		}
	}
	if key != byCommit {
		e.Ref, e.Tag, e.Immutable, e.Checked = key, tag, false, time.Now().UTC()
		return e, r.cache.record(e)
	}
	return e, nil
}

// moving brings what a reference stands for now into the cache, or takes what it
// stood for when the network fails.
func (r *resolver) moving(ctx context.Context, key string, fetch func(old Entry) (Entry, error)) (Entry, error) {
	old, have := r.cache.find(key)
	if have {
		if _, err := r.cache.open(old); err != nil {
			r.notice("%v; it is fetched again", err)
			old, have = Entry{}, false
		}
	}
	switch {
	case have && (old.Immutable || r.o.Offline):
		return old, nil
	case r.o.Offline:
		return Entry{}, errdefs.New("E2005", "fetch template", "offline, and there is no copy of "+key)
	}
	e, err := fetch(old)
	if err != nil && have && ctx.Err() == nil && errdefs.CodeOf(err) == "E2005" {
		r.notice("%s is the copy of %s: %v", key, old.Checked.Format(time.RFC3339), err)
		return old, nil
	}
	return e, err
}
