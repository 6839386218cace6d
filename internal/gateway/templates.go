package gateway

import (
	"net/http"
	"strings"
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
// that stands for no tag.
func (s *Server) template(name string) (template, error) {
	plain := strings.TrimSuffix(name, ":default")
	switch {
	case plain == "" || plain == baseTemplate:
		return template{id: baseTemplate, alias: baseTemplate, provider: baseTemplate}, nil
	case s.opts.Templates[plain] != "":
		return template{id: s.opts.Templates[plain], alias: plain, provider: s.opts.Templates[plain]}, nil
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
