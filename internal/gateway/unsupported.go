package gateway

import (
	"net/http"
	"net/url"

	"github.com/gorilla/mux"
)

// unsupportedRoutes are routes of the protocol that this gateway does not
// serve. The answer is 501 with a body that says so; SDKs raise it as a
// SandboxError, BuildError or TemplateError with that text.
var unsupportedRoutes = []struct{ method, path, what string }{
	{"POST", "/v3/templates", "building templates is"},
	{"POST", "/v2/templates", "building templates is"},
	{"POST", "/templates", "building templates is"},
	{"POST", "/templates/tags", "tagging templates is"},
	{"DELETE", "/templates/tags", "tagging templates is"},
	{"POST", "/templates/{template}", "building templates is"},
	{"POST", "/templates/{template}/builds/{build}", "building templates is"},
	{"POST", "/v2/templates/{template}/builds/{build}", "building templates is"},
	{"PATCH", "/templates/{template}", "changing templates is"},
	{"PATCH", "/v2/templates/{template}", "changing templates is"},
	{"POST", "/volumes", "making volumes is"},
	{"GET", "/secrets", "the keeping of secrets is"},
	{"POST", "/secrets", "the keeping of secrets is"},
	{"GET", "/teams", "teams are"},
}

// notHere answers 501.
func notHere(what string) func(http.ResponseWriter, *http.Request) error {
	return func(http.ResponseWriter, *http.Request) error { return notSupported(what) }
}

// notOfSandbox answers 501 for a sandbox that is there and 404 for others.
func (s *Server) notOfSandbox(what string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		if _, err := s.boxOf(r); err != nil {
			return err
		}
		return notSupported(what)
	}
}

// none answers an empty list: the truth about what nobody can make here. The
// templates of a list are those that a key made itself; base is nobody's.
func none(w http.ResponseWriter, _ *http.Request) error {
	answer(w, http.StatusOK, []struct{}{})
	return nil
}

// noVolume answers that a volume is not there.
func noVolume(http.ResponseWriter, *http.Request) error {
	return refuse(http.StatusNotFound, "", "the volume does not exist")
}

// alias answers whether sandboxes can be made from a template.
func (s *Server) alias(w http.ResponseWriter, r *http.Request) error {
	t, err := s.templateOf(r)
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, struct {
		TemplateID string `json:"templateID"`
		Public     bool   `json:"public"`
	}{t.id, true})
	return nil
}

func (s *Server) templateOf(r *http.Request) (template, error) {
	name, err := url.PathUnescape(mux.Vars(r)["template"])
	if err != nil {
		return template{}, refuse(http.StatusBadRequest, "", "the template's name is malformed")
	}
	return s.template(r.Context(), name)
}

// describeTemplate answers 501 for templates that are there.
func (s *Server) describeTemplate(w http.ResponseWriter, r *http.Request) error {
	if _, err := s.templateOf(r); err != nil {
		return err
	}
	return notSupported("the description of templates is")
}
