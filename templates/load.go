package templates

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// fileNames are the files of a folder that can define a template, in the order in
// which they are looked for. A sandbox.yaml may be a project file instead, which
// its content tells.
var fileNames = []string{"template.yaml", "sandbox-template.yaml", "sandbox.yaml"}

// errProject is what the reader says of a project file.
var errProject = errors.New("a project file, not a template")

// Parse reads the text of a template file, in either form. The name is what
// problems call the file. Nothing else is read: base.from is left as it is, and
// files that are copied are not looked for.
//
// A file with mistakes gives an [*Invalid] with all of them.
func Parse(data []byte, name string) (*model.Template, error) {
	t, _, err := parseFile(data, name)
	if errors.Is(err, errProject) {
		return nil, invalid([]Problem{{File: name, Line: 1, Col: 1, Message: "this is a project file (template, without name), not a template", Hint: "a template has a name"}})
	}
	return t, err
}

// parseFile returns the template and where its file says what.
func parseFile(data []byte, name string) (*model.Template, *reader, error) {
	r := newReader(name)
	m, ok := r.document(data)
	if !ok {
		return nil, r, invalid(r.problems)
	}
	r.at["."] = place{1, 1}
	d := &draft{t: model.Template{Format: model.Version}}
	switch formOf(m) {
	case "nested":
		r.fields(m, "a template", d.nested())
		if mapKey(m, "version") == nil {
			r.failAt("", `the nested form has no version`, `write version: "1"`)
		}
	case "project":
		return nil, r, errProject
	default:
		r.fields(m, "a template", d.flat())
	}
	d.finish(r)
	tidy(&d.t)
	check(&d.t, r.failModel)
	if err := invalid(r.problems); err != nil {
		return nil, r, err
	}
	return &d.t, r, nil
}

// formOf tells the forms apart: only the nested one has metadata, or a version
// of the form and no name; a project file chooses a template and has no name.
func formOf(m *ast.MappingNode) string {
	switch version := mapKey(m, "version"); {
	case mapKey(m, "metadata") != nil:
		return "nested"
	case mapKey(m, "name") != nil:
		return "flat"
	case version != nil && keyText(version) == "1":
		return "nested"
	case mapKey(m, "template") != nil:
		return "project"
	}
	return "flat"
}

func mapKey(m *ast.MappingNode, key string) ast.Node {
	for _, v := range m.Values {
		if keyText(v.Key) == key {
			return v.Value
		}
	}
	return nil
}

// tidy gives a model that says the same thing in one way only: nothing is said by
// an empty list or mapping, save in the lists of the policy.
func tidy(t *model.Template) {
	for _, l := range []*[]string{&t.Tags, &t.Requires} {
		if len(*l) == 0 {
			*l = nil
		}
	}
	if len(t.Ports) == 0 {
		t.Ports = nil
	}
	if len(t.Build) == 0 {
		t.Build = nil
	}
	for i := range t.Build {
		t.Build[i].Run = strings.TrimRight(t.Build[i].Run, "\n") // block text of YAML ends with one
	}
	if len(t.Env) == 0 {
		t.Env = nil
	}
	if len(t.Commands) == 0 {
		t.Commands = nil
	}
	for name, c := range t.Commands {
		if len(c.Env) == 0 {
			c.Env = nil
		}
		if len(c.Args) == 0 {
			c.Args = nil
		}
		for i := range c.Args {
			if c.Args[i].Type == "string" {
				c.Args[i].Type = ""
			}
		}
		t.Commands[name] = c
	}
	for _, rules := range [][]model.CommandRule{t.Policy.Commands.Allow, t.Policy.Commands.Deny} {
		for i := range rules {
			if len(rules[i].Args) == 0 {
				rules[i].Args = nil
			}
		}
	}
	if s := t.Server; s != nil {
		for _, l := range []*[]string{&s.Disable} {
			if len(*l) == 0 {
				*l = nil
			}
		}
	}
	if len(t.Interpreter.Prestart) == 0 {
		t.Interpreter.Prestart = nil
	}
	if len(t.Interpreter.Programs) == 0 {
		t.Interpreter.Programs = nil
	}
	if t.Agent != nil && len(t.Agent.Triggers) == 0 {
		t.Agent.Triggers = nil
	}
	if t.Format == 0 {
		t.Format = model.Version
	}
}

// Load reads the template of a folder: template.yaml, else sandbox-template.yaml,
// else sandbox.yaml when it is not a project file. A Dockerfile in the folder is
// part of the template and wins over its base and build steps; alone, it is a
// template with the folder's name.
//
// A mistake gives an [*Invalid]; a folder without a template is
// [errdefs.ErrTemplateNotFound]. base.from is left as it is: [Resolve] follows it.
func Load(dir string) (*model.Template, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, errdefs.Wrap("E2001", "read template", "folder "+dir, err)
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return nil, errdefs.Wrap("E2001", "read template", "folder "+dir, err)
	}
	defer root.Close()
	return load(root.FS(), filepath.Base(abs), func(name string) string { return filepath.Join(dir, name) })
}

// LoadFS is like [Load] for a folder of any file system. The name is the folder's.
func LoadFS(fsys fs.FS, name string) (*model.Template, error) {
	return load(fsys, name, func(file string) string { return file })
}

// load reads a folder; show gives the name under which problems call a file.
func load(fsys fs.FS, name string, show func(string) string) (*model.Template, error) {
	var t *model.Template
	var r *reader
	for _, file := range fileNames {
		data, err := readFile(fsys, file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, errdefs.Wrap("E2004", "read template", show(file), err)
		}
		t, r, err = parseFile(data, show(file))
		if errors.Is(err, errProject) {
			continue
		}
		if err != nil {
			return nil, err
		}
		break
	}
	dockerfile, err := readFile(fsys, "Dockerfile")
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, errdefs.Wrap("E2004", "read template", show("Dockerfile"), err)
	case t == nil:
		t = &model.Template{Format: model.Version, Name: folderName(name)}
		fallthrough
	default:
		if !hasFrom(string(dockerfile)) {
			return nil, invalid([]Problem{{File: show("Dockerfile"), Line: 1, Message: "there is no FROM"}})
		}
		t.Dockerfile = string(dockerfile)
		return t, nil
	}
	if t == nil {
		return nil, &errdefs.Error{Code: "E2001", Op: "read template", Message: "folder " + show(".") + " holds no template",
			Suggestion: "a template is a " + strings.Join(fileNames, ", a ") + " or a Dockerfile"}
	}
	for i, s := range t.Build {
		if s.Copy == nil {
			continue
		}
		if first, _, _ := strings.Cut(path.Clean(s.Copy.Src), "/"); first == baseFolder {
			r.failAt(fmt.Sprintf("build[%d].copy.src", i), fmt.Sprintf("src %q: %s is for the files of other templates", s.Copy.Src, baseFolder), "")
		} else if _, err := fs.Stat(fsys, path.Clean(s.Copy.Src)); err != nil {
			r.failAt(fmt.Sprintf("build[%d].copy.src", i), fmt.Sprintf("src %q is not in the template's folder", s.Copy.Src), "")
		}
	}
	return t, invalidOrNil(r)
}

func invalidOrNil(r *reader) error {
	if r == nil {
		return nil
	}
	return invalid(r.problems)
}

// readFile reads a regular file up to the limit of template files.
func readFile(fsys fs.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("not a regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("larger than %d bytes", maxFile)
	}
	return data, err
}

var notKebab = regexp.MustCompile(`[^a-z0-9]+`)

// folderName makes a name of a template of a folder's name.
func folderName(s string) string {
	s = strings.Trim(notKebab.ReplaceAllString(strings.ToLower(s), "-"), "-")
	if s == "" {
		return "template"
	}
	return s[:min(len(s), 63)]
}

var fromLine = regexp.MustCompile(`(?im)^[ \t]*FROM[ \t]+\S`)

func hasFrom(dockerfile string) bool { return fromLine.MatchString(dockerfile) }
