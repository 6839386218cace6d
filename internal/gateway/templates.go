package gateway

import (
	"context"
	"net/http"
	"strings"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// baseTemplate is the template that every gateway has.
const baseTemplate = "base"

// template is one that sandboxes can be made from.
type template struct {
	id       string // as answered
	alias    string
	provider string // what the provider calls it
}

// template finds a template by what a client calls it. Names may carry the tag
// that stands for no tag. Beside base and the names that the gateway was given,
// there is what was built on this machine.
func (s *Server) template(ctx context.Context, name string) (template, error) {
	plain := strings.TrimSuffix(name, ":default")
	switch {
	case plain == "" || plain == baseTemplate:
		return template{id: baseTemplate, alias: baseTemplate, provider: baseTemplate}, nil
	case s.opts.Templates[plain] != "":
		return template{id: s.opts.Templates[plain], alias: plain, provider: s.opts.Templates[plain]}, nil
	}
	if b, ok := s.opts.Provider.(providers.TemplateBuilder); ok {
		t, err := b.FindTemplate(ctx, plain)
		if err == nil {
			return template{id: t.Name, alias: t.Name, provider: t.Name}, nil
		}
		if errdefs.CodeOf(err) != "E2001" {
			return template{}, err
		}
	}
	return template{}, refuse(http.StatusNotFound, "E2001", "template %q not found; this gateway has %q", clip(name), baseTemplate)
}

// clip shortens text of a client for a message.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
