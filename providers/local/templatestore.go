//go:build linux

package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/internal/near"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// A built template is a file of templates/ that names the layers of each of its
// steps: <hash of its name>.json. While it is built the file has another name,
// buildPrefix and random text, and whoever builds holds the lock beside it; the
// file alone says that the layers are used. Files are written and removed with
// the lock of the layers held.
const (
	templatesDir = "templates"

	buildPrefix = ".build-"
	keyPrefix   = ".key-" // lock of those who build the same
	fileJSON    = ".json"
	fileLocked  = ".lock"
)

// maxTemplateFile bounds one of them, in bytes.
const maxTemplateFile = 16 << 20

// savedTemplate is such a file.
type savedTemplate struct {
	Model     *model.Template `json:"model"`
	Digest    string          `json:"digest"`
	CreatedAt time.Time       `json:"created_at"`
	Root      savedRoot       `json:"root,omitzero"`
	Steps     []builtStep     `json:"steps,omitempty"`

	// Of an image that an engine has built: the hash of what it was built from, and
	// how much its files take.
	Engine string `json:"engine,omitempty"`
	Bytes  int64  `json:"bytes,omitempty"`
}

// builtStep is what a step left.
type builtStep struct {
	Key  string `json:"key"` // hash of all that it depends on
	Size int64  `json:"size"`
	fileSet
}

// files are what a sandbox starts with.
func (s *savedTemplate) files() fileSet {
	if len(s.Steps) == 0 {
		return fileSet{}
	}
	return s.Steps[len(s.Steps)-1].fileSet
}

func (s *savedTemplate) public() *providers.Template {
	t := &providers.Template{Name: s.Model.Name, Model: s.Model, Digest: s.Digest, CreatedAt: s.CreatedAt, Size: s.Bytes}
	for _, step := range s.Steps {
		t.Size += step.Size
	}
	return t
}

func templateFile(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:]) + fileJSON
}

// readTemplate reads a file of templates/; fs.ErrNotExist when there is none.
func (t *tree) readTemplate(file string) (*savedTemplate, error) {
	b, err := t.templates.read(file, maxTemplateFile)
	if err != nil {
		return nil, err
	}
	s := &savedTemplate{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("%s/%s: %w", templatesDir, file, err)
	}
	if s.Model == nil {
		return nil, fmt.Errorf("%s/%s: there is no template in it", templatesDir, file)
	}
	if s.Model.Format > model.Version {
		return nil, fmt.Errorf("%s/%s: a later version of this module has written it", templatesDir, file)
	}
	return s, nil
}

// template returns what was built under a name; E2001 when nothing was.
func (t *tree) template(op, name string) (*savedTemplate, error) {
	s, err := t.readTemplate(templateFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, t.noTemplate(op, name)
	}
	if err != nil {
		return nil, stateError(op, "read template "+clip(name), err)
	}
	return s, nil
}

const opRemove = "remove template"

// maxNamed bounds the templates that an error names.
const maxNamed = 12

// noTemplate is the error for a name under which nothing was built.
func (t *tree) noTemplate(op, name string) error {
	if strings.HasPrefix(name, ".") || strings.Contains(name, "/") {
		return &errdefs.Error{Code: "E2001", Op: op,
			Message:    fmt.Sprintf("template %q is not known to provider local: a folder is built first, and then used by the name in it", clip(name)),
			Suggestion: "run sandbox template build " + clip(name)}
	}
	known := []string{baseTemplate}
	_ = t.eachTemplate(func(file string, s *savedTemplate, err error) { // what cannot be read is not offered
		if err == nil && s.Model != nil && file == templateFile(s.Model.Name) {
			known = append(known, s.Model.Name)
		}
	})
	hint, rest := "", "a template is built before it is used: sandbox template build REF, with the name of one that is built in, or a folder, as ./tools"
	if op == opRemove {
		rest = "sandbox template ls has the names"
	}
	if like := near.Best(name, known); like != "" {
		hint = fmt.Sprintf("did you mean %q? Otherwise ", like)
	}
	shown, more := known, ""
	if n := len(known) - maxNamed; n > 0 {
		shown, more = known[:maxNamed], fmt.Sprintf(" and %d more", n)
	}
	return &errdefs.Error{Code: "E2001", Op: op,
		Message: fmt.Sprintf("template %q is not known to provider local: nothing was built under this name; %s holds %s%s", clip(name),
			filepath.Join(t.path, templatesDir), strings.Join(shown, ", "), more),
		Suggestion: hint + rest}
}

// eachTemplate calls f with every file of a template, of builds that run too, or
// with why it cannot be read. One that has gone meanwhile is left out.
func (t *tree) eachTemplate(f func(file string, s *savedTemplate, err error)) error {
	names, err := t.templates.allNames()
	if err != nil {
		return err
	}
	for _, n := range names {
		if !strings.HasSuffix(n, fileJSON) || strings.HasPrefix(n, ".") && !strings.HasPrefix(n, buildPrefix) {
			continue
		}
		s, err := t.readTemplate(n)
		if !errors.Is(err, fs.ErrNotExist) {
			f(n, s, err)
		}
	}
	return nil
}

// sweepBuilds removes what builds left whose process was killed. The lock of the
// layers is held.
func (t *tree) sweepBuilds() error {
	names, err := t.templates.allNames()
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range names {
		switch {
		case strings.HasPrefix(n, buildPrefix) && strings.HasSuffix(n, fileLocked), strings.HasPrefix(n, keyPrefix):
		case strings.HasPrefix(n, "."+buildPrefix), strings.HasPrefix(n, ".") && !strings.HasPrefix(n, buildPrefix):
			errs = append(errs, t.templates.remove(n)) // half of a file
			continue
		default:
			continue
		}
		lock, err := t.templates.tryLock(n)
		if err != nil {
			errs = append(errs, notBusy(err))
			continue
		}
		if file, ok := strings.CutSuffix(n, fileLocked); ok {
			if err := t.templates.remove(file + fileJSON); err != nil && err != unix.ENOENT {
				errs = append(errs, err)
			}
		}
		errs = append(errs, t.templates.remove(n))
		lock.Close()
	}
	return errors.Join(errs...)
}

// FindTemplate returns what was built under a name; E2001 when nothing was.
func (p *Provider) FindTemplate(ctx context.Context, name string) (*providers.Template, error) {
	const op = "find template"
	t, done, err := p.begin(ctx, op)
	if err != nil {
		return nil, err
	}
	defer done()
	s, err := t.template(op, name)
	if err != nil {
		return nil, err
	}
	return s.public(), nil
}

// ListTemplates returns what was built, by name.
func (p *Provider) ListTemplates(ctx context.Context) ([]*providers.Template, error) {
	t, done, err := p.begin(ctx, "list templates")
	if err != nil {
		return nil, err
	}
	defer done()
	var out []*providers.Template
	err = t.eachTemplate(func(file string, s *savedTemplate, err error) {
		switch {
		case strings.HasPrefix(file, "."):
		case err != nil:
			p.log.WarnContext(ctx, "a template that cannot be read is left out", "file", file, "err", err)
		default:
			out = append(out, s.public())
		}
	})
	slices.SortFunc(out, func(a, b *providers.Template) int { return strings.Compare(a.Name, b.Name) })
	return out, err
}

// RemoveTemplate removes a template. Its files stay as long as sandboxes use them
// that were made from it, or other templates do.
func (p *Provider) RemoveTemplate(ctx context.Context, name string) error {
	const op = opRemove
	t, done, err := p.begin(ctx, op)
	if err != nil {
		return err
	}
	defer done()
	lock, err := t.lockLayers(ctx)
	if err != nil {
		return orCancelled(ctx, op, err)
	}
	err = t.templates.remove(templateFile(name))
	lock.Close()
	switch {
	case err == unix.ENOENT:
		return t.noTemplate(op, name)
	case err != nil:
		return stateError(op, "template "+clip(name), err)
	}
	return t.sweepLayers(ctx)
}
