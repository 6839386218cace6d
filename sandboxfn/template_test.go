package sandboxfn

import (
	"errors"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

func TestTemplates(t *testing.T) {
	sb := snapshotSandbox(t, nil) // where layers can be had
	c := sb.client
	var events []BuildEvent
	o := &BuildOptions{Progress: func(e BuildEvent) { events = append(events, e) }}
	m := &model.Template{Name: "tools", Workdir: "/work", Build: []model.Step{{Run: "echo one; echo text > file"}}}
	s, err := c.BuildTemplate(t.Context(), m, o)
	must(t, err)
	if s.Name != "tools" || s.Provider != "local" || s.Digest == "" || s.CreatedAt.IsZero() {
		t.Errorf("%+v", s)
	}
	if n := len(events); n < 3 || events[0].Kind != BuildStarted || events[1].Kind != BuildOutput || events[1].Text != "one" || events[n-1].Kind != BuildDone {
		t.Errorf("events: %+v", events)
	}
	made, err := c.Create(t.Context(), &CreateOptions{Template: "tools"})
	fromSnapshot(t, err)
	closeAtEnd(t, made)
	if got := inside(t, made, "pwd; cat file"); got != "/work\ntext" {
		t.Errorf("in the sandbox: %q", got)
	}
	all, err := c.Templates(t.Context())
	if err != nil || len(all) != 1 || all[0].Name != "tools" {
		t.Errorf("list: %+v, %v", all, err)
	}
	_, err = c.BuildTemplate(t.Context(), &model.Template{Name: "bad", Build: []model.Step{{Run: "echo why; false"}}}, nil)
	step, ok := errors.AsType[*BuildStepError](err)
	if !errors.Is(err, ErrBuild) || !ok || step.Step != 1 || strings.Join(step.Last, "") != "why" {
		t.Errorf("failed build: %v", err)
	}
	must(t, c.RemoveTemplate(t.Context(), "tools"))
	if err := c.RemoveTemplate(t.Context(), "tools"); !errors.Is(err, ErrTemplateNotFound) {
		t.Errorf("second removal: %v", err)
	}
	if _, err := c.BuildTemplate(t.Context(), m, &BuildOptions{Network: "a b"}); errdefs.CodeOf(err) != "E2011" {
		t.Errorf("network: %v", err)
	}
	if _, err := c.BuildTemplate(t.Context(), nil, nil); errdefs.CodeOf(err) != "E2011" {
		t.Errorf("no template: %v", err)
	}
}
