package sandboxfn

import (
	"context"
	"io/fs"
	"os"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// BuildEvent is a piece of news of a build.
type BuildEvent = providers.BuildEvent

// BuildEventKind says what has happened.
type BuildEventKind = providers.BuildEventKind

// Kinds of news.
const (
	BuildWaiting = providers.BuildWaiting
	BuildStarted = providers.BuildStarted
	BuildOutput  = providers.BuildOutput
	BuildCached  = providers.BuildCached
	BuildDone    = providers.BuildDone
)

// BuildStepError says which step of a build failed, and what it printed last. It
// is found in the error of [BuildTemplate] by errors.As.
type BuildStepError = providers.BuildStepError

// BuildOptions say how to build a template.
type BuildOptions struct {
	Provider string           // default: the client's
	Dir      string           // folder that files are copied from, and never from outside it; empty: Files
	Files    fs.FS            // that files are copied from; nil: no step copies
	Fresh    bool             // run every step, whatever is kept of earlier builds
	Engine   string           // builds the Dockerfile of the template: "podman", "buildah", "docker", or "auto"; default: auto if there is one, else none
	Network  string           // what the steps can reach; default: what the template says for builds
	Progress func(BuildEvent) // called from one goroutine at a time; nil: nobody wants to know
}

// TemplateInfo describes a template that was built. Its Name goes into
// [CreateOptions.Template].
type TemplateInfo struct {
	Name, Provider string
	Model          *model.Template // what it says
	Digest         string          // of all that it was built from
	CreatedAt      time.Time
	Size           Bytes // of the files of its steps
}

// BuildTemplate is [Client.BuildTemplate] on the client of ctx, or the default
// one.
func BuildTemplate(ctx context.Context, t *model.Template, o *BuildOptions) (*TemplateInfo, error) {
	c, err := clientFrom(ctx)
	if err != nil {
		return nil, err
	}
	return c.BuildTemplate(ctx, t, o)
}

// BuildTemplate builds a template and keeps it under its name, in the place of an
// earlier one; then sandboxes and functions can be made from it. Steps that were
// done before are not run again. A nil o means the defaults; neither t nor o is
// changed.
//
// Errors: E2004 for a template that makes no sense, [ErrOption], [ErrNotSupported]
// for what the provider cannot build, [ErrBuild] with a [*BuildStepError] for a
// step that fails. After an error, or when ctx ends, nothing is left of the build.
func (c *Client) BuildTemplate(ctx context.Context, t *model.Template, o *BuildOptions) (*TemplateInfo, error) {
	const op = "build template"
	var v BuildOptions
	if o != nil {
		v = *o
	}
	if t == nil {
		return nil, errdefs.New("E2011", op, "there is no template")
	}
	network, problem := parseNetwork(v.Network)
	if problem != "" {
		return nil, errdefs.New("E2011", op, "Network "+quoted(v.Network)+": "+problem)
	}
	p, b, err := c.builder(ctx, op, v.Provider)
	if err != nil {
		return nil, err
	}
	if v.Dir != "" {
		root, err := os.OpenRoot(v.Dir)
		if err != nil {
			return nil, errdefs.Wrap("E2011", op, "folder that files are copied from", err)
		}
		defer root.Close()
		v.Files = root.FS()
	}
	s, err := b.BuildTemplate(ctx, providers.TemplateBuild{Model: t, Files: v.Files, Fresh: v.Fresh, Engine: v.Engine, Network: network, Progress: v.Progress})
	if err != nil {
		return nil, c.providerError(ctx, op, err)
	}
	return templateInfo(p, s), nil
}

func (c *Client) builder(ctx context.Context, op, name string) (providers.Provider, providers.TemplateBuilder, error) {
	p, err := c.provider(name)
	if err != nil {
		return nil, nil, err
	}
	b, err := capable[providers.TemplateBuilder](ctx, op, p, providers.CapTemplates)
	return p, b, err
}

func templateInfo(p providers.Provider, s *providers.Template) *TemplateInfo {
	return &TemplateInfo{Name: s.Name, Provider: p.Name(), Model: s.Model, Digest: s.Digest, CreatedAt: s.CreatedAt, Size: Bytes(s.Size)}
}

// Templates is [Client.Templates] on the client of ctx, or the default one.
func Templates(ctx context.Context) ([]*TemplateInfo, error) {
	c, err := clientFrom(ctx)
	if err != nil {
		return nil, err
	}
	return c.Templates(ctx)
}

// Templates returns the templates that the client's provider has built, by name.
// Providers that build none: [ErrNotSupported].
func (c *Client) Templates(ctx context.Context) ([]*TemplateInfo, error) {
	const op = "list templates"
	p, b, err := c.builder(ctx, op, "")
	if err != nil {
		return nil, err
	}
	all, err := b.ListTemplates(ctx)
	if err != nil {
		return nil, c.providerError(ctx, op, err)
	}
	var out []*TemplateInfo
	for _, s := range all {
		out = append(out, templateInfo(p, s))
	}
	return out, nil
}

// RemoveTemplate is [Client.RemoveTemplate] on the client of ctx, or the default
// one.
func RemoveTemplate(ctx context.Context, name string) error {
	c, err := clientFrom(ctx)
	if err != nil {
		return err
	}
	return c.RemoveTemplate(ctx, name)
}

// RemoveTemplate removes a template that the client's provider has built.
// Sandboxes that were made from it live on. One that is not there is
// [ErrTemplateNotFound].
func (c *Client) RemoveTemplate(ctx context.Context, name string) error {
	const op = "remove template"
	_, b, err := c.builder(ctx, op, "")
	if err != nil {
		return err
	}
	if err := b.RemoveTemplate(ctx, name); err != nil {
		return c.providerError(ctx, op, err)
	}
	return nil
}
