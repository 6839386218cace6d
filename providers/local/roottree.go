//go:build linux

package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/nsinit"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// A rootTree is what the files of a sandbox are, but for the places that every
// sandbox writes. The zero value is the view of the host.
//
// Layers have foreign content, and the construction runs while the host can be
// reached. So it never makes a name in them: everything that it needs there, the
// directories to mount on and files of its own, is made in the empty directory
// that will lie above the layers. Whatever they have at such a place is hidden
// then, links included, before the first path goes through them.
type rootTree struct {
	image    string       // digest; empty: no image
	dir      string       // of the host, resolved; empty: none
	layers   []stackLayer // of the image or directory, uppermost first
	kept     []string     // names of layers in the store
	writable bool

	accounts *accounts // of a tree with layers
	config   ImageConfig
	makeDir  string // working directory that the layers do not have
}

// foreign reports whether the tree is not that of the host.
func (r *rootTree) foreign() bool { return len(r.layers) > 0 || r.image != "" }

// stacked reports whether the root is a stack and not a plain directory.
func (r *rootTree) stacked() bool { return r.foreign() || r.writable }

// String is the tree in the words of the report.
func (r *rootTree) String() string {
	s := "host"
	switch {
	case r.image != "":
		s = "image " + r.image
	case r.dir != "":
		s = "dir " + r.dir
	}
	if r.writable {
		s += ", writable"
	}
	return s
}

// rootName is that of the directory of the scratch in which the root is made.
const rootName = "root"

// rootPlace is the name among the files of a sandbox of what a build has written
// elsewhere than in the places: no place is called so, see placeName. It is a
// layer of the root then, for whoever starts with these files.
const rootPlace = "%root"

// rootLayers are those of the store that the root lies below.
func (t *tree) rootLayers(names []string) []stackLayer {
	var out []stackLayer
	for _, n := range names {
		at := filepath.Join(t.layerPath(n), rootPlace)
		if fi, err := os.Lstat(at); err == nil && fi.IsDir() {
			out = append(out, stackLayer{at, ownersStored})
		}
	}
	return out
}

// rootStack is the stack that the root is; nil: it is a plain directory.
func (p *planner) rootStack() *stack {
	if !p.s.root.stacked() {
		return nil
	}
	s := &stack{name: rootName, layers: p.s.root.layers}
	if p.s.build {
		s.above = p.files().upper() + "/" + rootPlace
	}
	return s
}

// enterRoot makes the stack of the root and stands in it. What is below has been
// mounted and stays where it was, seen from there. What init will mount on is
// made first, see program.skeleton.
func (p *planner) enterRoot() {
	s := p.rootStack()
	if s == nil {
		return
	}
	p.mkdir(s.dir(), 0o755)
	p.mkdir(s.upper(), 0o755)
	if p.s.root.writable && p.s.root.foreign() && p.s.mapping.kind == mapSubid {
		// There the files of layers are the user's, and so are their directories.
		p.boneOwner = userID
		p.add("give away /", unix.SYS_FCHOWNAT, atCwd, nsinit.Str(s.upper()), nsinit.Int(userID), nsinit.Int(userID), nsinit.Int(unix.AT_SYMLINK_NOFOLLOW))
	}
	p.add("enter "+s.upper(), unix.SYS_CHDIR, nsinit.Str(s.upper()))
	p.beginSkeleton()
	p.early(scratchAt, func() {
		p.add("make /"+scratchAt, unix.SYS_MKDIRAT, atCwd, nsinit.Str(scratchAt), nsinit.Int(0o555))
	})
	p.add("leave "+s.upper(), unix.SYS_CHDIR, nsinit.Str(strings.Repeat("../", strings.Count(s.upper(), "/")+1)))
	p.makeStack(s)
	for _, e := range p.hostStacks() {
		p.makeStack(e.stack)
	}
	root := s.tree()
	if len(s.layers) == 0 { // a directory becomes a mount
		p.mount("mount the root", root, root, "", unix.MS_BIND, "")
	}
	p.mount("take the scratch along", scratchAt, root+"/"+scratchAt, "", unix.MS_BIND|unix.MS_REC, "")
	p.add("enter the root", unix.SYS_CHDIR, nsinit.Str(root))
	for _, e := range p.hostStacks() {
		p.mkdir(e.target, 0o755)
		p.mount("show /"+e.target, e.stack.tree(), e.target, "", unix.MS_BIND, "")
	}
	if dir := p.s.root.makeDir; dir != "" {
		p.mkdir(dir[1:], 0o755)
	}
}

// chooseRoot finds out what the root of o is, and fetches it.
func (p *Provider) chooseRoot(ctx context.Context, t *tree, o *order) error {
	r := &o.root
	r.writable = o.Root.Writable
	var err error
	switch {
	case o.Image != "":
		var img *savedImage
		if img, err = p.images.pullAs(ctx, o.Image, o.imageDigest); err != nil {
			return err
		}
		r.image, r.config, r.kept = img.Digest, img.Config, img.Layers
		r.layers = append(t.rootLayers(o.layers), p.images.stackLayers(img)...)
	case o.Root.Dir != "":
		if r.dir, err = checkRootDir(o.Root.Dir, t.path); err != nil {
			return err
		}
		r.layers = []stackLayer{{r.dir, ownersSame}}
	case r.writable && o.mapping != mapBlock:
		return &errdefs.Error{Code: "E8004", Op: "create sandbox",
			Message:    "the tree of this machine cannot be made writable for you: its files belong to ids that your sandboxes do not have, and cannot be copied",
			Suggestion: "use an image or a RootDir of your own, whose files are yours, or run as root"}
	}
	if !r.foreign() {
		return nil
	}
	return o.readRoot()
}

// readRoot reads of the layers what has to be known before the start.
func (o *order) readRoot() error {
	r := &o.root
	files, err := openForeign(r.layers)
	if err != nil {
		return &errdefs.Error{Code: "E2000", Op: "create sandbox", Message: "look at the file tree", Err: err}
	}
	defer files.close()
	r.accounts = mergeAccounts(files)
	if err := o.chooseUser(r); err != nil {
		return err
	}
	if dir := r.config.WorkingDir; o.WorkDir == "" && path.IsAbs(dir) && path.Clean(dir) != "/" && len(dir) < 4000 && !strings.ContainsRune(dir, 0) {
		o.WorkDir = path.Clean(dir)
		if files.absent(o.WorkDir) && checkPlace("", o.WorkDir, ownPaths(nil, true)) == nil {
			r.makeDir = o.WorkDir
		}
	}
	if o.WorkDir == "" {
		// A command starts there when it does not say where.
		u := r.accounts.find(func(u account) bool { return u.name == o.User })
		if u != nil && !slices.Contains(scratchPlaces, path.Clean(u.home)) && files.absent(path.Clean(u.home)) {
			o.WorkDir = "/"
		}
	}
	env := map[string]string{}
	for _, v := range r.config.Env {
		if k, v, ok := strings.Cut(v, "="); ok && checkEnv(map[string]string{k: v}) == nil {
			env[k] = v
		}
	}
	maps.Copy(env, o.Env)
	o.Env = env
	return checkEnv(env)
}

// chooseUser settles on the default user: the one that was asked for, else that
// of the image where it can be had.
func (o *order) chooseUser(r *rootTree) error {
	switch {
	case o.asked != "":
		if !r.accounts.has(o.asked) {
			return &errdefs.Error{Code: "E3008", Op: "create sandbox",
				Message: "the file tree has no user " + o.asked, Suggestion: "leave User empty for " + defaultUser}
		}
	case o.mapping != mapSingle:
		if name := r.accounts.resolve(r.config.User); name != "" {
			o.User = name
		}
	}
	return nil
}

// checkRootDir resolves a directory that is to be the tree of a sandbox.
func checkRootDir(dir, state string) (string, error) {
	refused := func(why string) error {
		return &errdefs.Error{Code: "E2011", Op: "create sandbox", Message: "root directory " + clip(dir) + " is refused: " + why,
			Suggestion: "name a directory that was prepared to be the tree of a sandbox"}
	}
	if !filepath.IsAbs(dir) {
		return "", refused("it is not absolute")
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", errdefs.Wrap("E2011", "create sandbox", "root directory "+clip(dir), err)
	}
	for _, p := range []string{filepath.Clean(dir), real} {
		if why := mustHide(p, state); why != "" {
			return "", refused(why)
		}
	}
	fi, err := os.Stat(real)
	if err != nil {
		return "", errdefs.Wrap("E2011", "create sandbox", "root directory "+clip(dir), err)
	}
	if !fi.IsDir() {
		return "", refused("it is no directory")
	}
	return real, nil
}

// absent reports whether there is nothing at a path of the tree.
func (t *foreignTree) absent(at string) bool {
	f, err := t.open(at)
	if err == nil {
		f.Close()
	}
	return errors.Is(err, unix.ENOENT)
}

// savedRoot is what is kept of the tree of a sandbox.
type savedRoot struct {
	Image    string   `json:"image,omitempty"`  // reference
	Digest   string   `json:"digest,omitempty"` // that it stood for
	Layers   []string `json:"layers,omitempty"` // of the image, in its store
	Dir      string   `json:"dir,omitempty"`
	Expose   []string `json:"expose,omitempty"` // beside what the provider exposes
	Writable bool     `json:"writable,omitempty"`
}

func (o *order) savedRoot() savedRoot {
	return savedRoot{Image: o.Image, Digest: o.root.image, Layers: o.root.kept, Dir: o.Root.Dir, Expose: o.Root.Expose, Writable: o.root.writable}
}

// madeFrom names what the sandbox is made from, in lists.
func (o *order) madeFrom() string {
	return cmp.Or(o.made, o.Image, o.Template)
}

// exposed is what o shows of the host beside what every sandbox does.
func (p *Provider) exposed(o *order) []string {
	return append(append([]string(nil), p.expose...), o.Root.Expose...)
}

func checkRootView(r *providers.CreateRequest) error {
	switch {
	case r.Root.Dir != "" && r.Image != "":
		return badOption("an image and a root directory cannot both be the file tree", "leave one of them empty")
	case r.Image != "" && len(r.Image) > 4096:
		return badOption(fmt.Sprintf("reference to an image has %d bytes; at most 4096", len(r.Image)), "")
	case len(r.Root.Expose) > maxExpose:
		return badOption(fmt.Sprintf("%d paths are exposed; at most %d", len(r.Root.Expose), maxExpose), "expose a directory that holds them")
	}
	for _, e := range r.Root.Expose {
		if !filepath.IsAbs(e) || len(e) > 4000 || strings.ContainsRune(e, 0) {
			return badOption(fmt.Sprintf("exposed path %q is not absolute", clip(e)), "")
		}
	}
	return nil
}

// maxExpose bounds the exposed paths of one request.
const maxExpose = 64

// view is what of the host is shown in the tree.
func (r *rootTree) view() []viewEntry {
	if r.foreign() {
		return deviceView()
	}
	return rootView()
}

// rootStacks are the stacks that the tree is made of.
func (p *planner) rootStacks() []*stack {
	root := p.rootStack()
	if root == nil {
		return nil
	}
	out := []*stack{root}
	for _, e := range p.hostStacks() {
		out = append(out, e.stack)
	}
	return out
}

// A hostStack is a directory of the host that is shown so that it can be written.
type hostStack struct {
	target string
	stack  *stack
}

// hostStacks are those of a tree of the host that can be written.
func (p *planner) hostStacks() []hostStack {
	if !p.s.root.writable || p.s.root.foreign() {
		return nil
	}
	var out []hostStack
	for _, e := range rootView() {
		if e.dir {
			name := rootName + "-" + strings.ReplaceAll(e.target, "/", "-")
			out = append(out, hostStack{e.target, &stack{name: name, layers: []stackLayer{{e.source, ownersSame}}}})
		}
	}
	return out
}

// inHostStack reports whether a target is shown by one of them.
func (p *planner) inHostStack(target string) bool {
	return slices.ContainsFunc(p.hostStacks(), func(h hostStack) bool { return h.target == target })
}
