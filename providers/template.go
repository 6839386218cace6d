package providers

import (
	"context"
	"io/fs"
	"time"

	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// TemplateBuilder is implemented by providers with CapTemplates: they build
// templates, keep them, and make sandboxes from them by name.
type TemplateBuilder interface {
	// BuildTemplate builds a template and keeps it under its name, in the place of
	// an earlier one. When it fails, or ctx ends first, what was there before is
	// there still and nothing else. A step that fails is E7010, and the cause is a
	// *BuildStepError.
	BuildTemplate(ctx context.Context, req TemplateBuild) (*Template, error)

	// FindTemplate returns what was built under a name; E2001 when nothing was.
	FindTemplate(ctx context.Context, name string) (*Template, error)

	// ListTemplates returns what was built, by name.
	ListTemplates(ctx context.Context) ([]*Template, error)

	// RemoveTemplate removes a template. Sandboxes made from it live on. A name
	// that is not there is E2001.
	RemoveTemplate(ctx context.Context, name string) error
}

// TemplateBuild says what to build.
type TemplateBuild struct {
	Model *model.Template // is not changed
	Files fs.FS           // that steps copy from; nil: no step copies
	Fresh bool            // run every step, whatever is kept of earlier builds

	// Engine builds the Dockerfile of Model: "podman", "buildah", "docker", or "auto"
	// for the first of them that works on this machine. Empty: auto where Model has a Dockerfile, else none, and the steps
	// are run by the provider. Files are then what the Dockerfile is built in.
	Engine string

	// Network is what the steps can reach; nil: as the template says for builds,
	// and the sandbox itself where it says nothing.
	Network *NetworkPolicy

	Progress func(BuildEvent) // nil: nobody wants to know. Called from one goroutine at a time
}

// BuildEvent is a piece of news of a build.
type BuildEvent struct {
	Kind  BuildEventKind
	Step  int           // from 1; zero: of no one step
	Steps int           // how many there are
	Text  string        // of the step; of BuildOutput the line, without its end
	Took  time.Duration // of BuildDone
}

// BuildEventKind says what has happened.
type BuildEventKind string

const (
	BuildWaiting BuildEventKind = "waiting" // somebody else builds the same
	BuildStarted BuildEventKind = "started" // a step began
	BuildOutput  BuildEventKind = "output"  // a step printed a line
	BuildCached  BuildEventKind = "cached"  // a step was done before
	BuildDone    BuildEventKind = "done"    // a step ended well; with Step zero all of them
)

// BuildStepError says which step of a build failed.
type BuildStepError struct {
	Step, Steps int
	Text        string   // of the step
	Status      string   // how it ended: "exit status 1"
	Last        []string // lines that it printed last
	Err         error    // why it could not be run or kept; nil: it ran and failed
}

// Error is the step, how it ended and what it printed last.
func (e *BuildStepError) Error() string {
	s := e.Text + ": " + e.Status
	if e.Err != nil {
		s = e.Text + ": " + e.Err.Error()
	}
	for _, line := range e.Last {
		s += "\n    " + line
	}
	return s
}

// Unwrap is Err.
func (e *BuildStepError) Unwrap() error { return e.Err }

// Template describes a template that was built.
type Template struct {
	Name      string
	Model     *model.Template
	Digest    string // of all that it was built from; the same for the same content
	CreatedAt time.Time
	Size      int64 // bytes of the files of its steps
}
