package templates

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agent-sandbox/sandbox-go/internal/near"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// maxLooked bounds the folders that are looked at for a hint.
const maxLooked = 1000

// noName is the error for a name that stands for no template. It says where was
// looked, and what was probably meant.
func (r *resolver) noName(name string, ix *Index) error {
	hint := ""
	if like := r.like(name, ix); like != "" {
		hint = fmt.Sprintf("did you mean %q? Otherwise ", like)
	}
	looked := "is not in the catalog " + redactURL(r.o.Index)
	if r.o.Index == "" {
		looked = "is nowhere else, as no catalog is configured"
		hint += "set SANDBOX_TEMPLATE_INDEX to the address or the file of a catalog; "
	}
	return &errdefs.Error{Code: "E2001", Op: "resolve template",
		Message:    fmt.Sprintf("template %q is none of the built-in %s, and %s", name, strings.Join(Builtin(), ", "), looked),
		Suggestion: hint + "a folder is written ./" + name}
}

// like is the reference of a template with nearly this name: one that is built in,
// of the catalog, a folder beside, or in the cache.
func (r *resolver) like(name string, ix *Index) string {
	refs := map[string]string{} // by the name that is compared
	var names []string
	add := func(name, ref string) {
		name = strings.ToLower(name)
		if _, ok := refs[name]; !ok {
			refs[name] = ref
			names = append(names, name)
		}
	}
	for _, n := range Builtin() {
		add(n, n)
	}
	for _, e := range ix.Templates {
		add(strings.ToLower(e.Name), strings.ToLower(e.Name))
	}
	if files, err := os.ReadDir(r.absolute(".", nil)); err == nil {
		for _, f := range files[:min(len(files), maxLooked)] {
			if f.IsDir() && InFolder(r.absolute(f.Name(), nil)) {
				add(f.Name(), "./"+f.Name())
			}
		}
	}
	if entries, err := r.cache.List(); err == nil {
		for _, e := range entries {
			base, _, _ := strings.Cut(path.Base(e.Ref), "@")
			add(strings.TrimSuffix(base, ".git"), e.Ref)
		}
	}
	return refs[near.Best(strings.ToLower(name), names)]
}

// InFolder reports whether a folder of this machine has a file that a template is read
// from. It is not read here.
func InFolder(dir string) bool {
	for _, file := range append(slices.Clone(fileNames), "Dockerfile") {
		if fi, err := os.Stat(filepath.Join(dir, file)); err == nil && fi.Mode().IsRegular() {
			return true
		}
	}
	return false
}
