package gateway

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/agent-sandbox/sandbox-go/internal/near"
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
	return template{}, s.noTemplate(ctx, plain)
}

// maxNamed bounds the templates that an answer names.
const maxNamed = 12

// noTemplate is the answer for a name that there is no template of.
func (s *Server) noTemplate(ctx context.Context, name string) error {
	known := append([]string{baseTemplate}, slices.Sorted(maps.Keys(s.opts.Templates))...)
	if b, ok := s.opts.Provider.(providers.TemplateBuilder); ok {
		built, err := b.ListTemplates(ctx)
		if err != nil {
			return err
		}
		for _, t := range built {
			known = append(known, t.Name)
		}
	}
	hint := ""
	if like := near.Best(name, known); like != "" {
		hint = fmt.Sprintf("; did you mean %q?", like)
	}
	if n := len(known) - maxNamed; n > 0 {
		known = append(known[:maxNamed], fmt.Sprintf("%d more", n))
	}
	return refuse(http.StatusNotFound, "E2001", "template %q not found; this gateway has %s%s", clip(name), strings.Join(known, ", "), hint)
}

// clip shortens text of a client for a message.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
