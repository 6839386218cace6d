//go:build linux

package httpapi

import (
	"errors"
	"net/http"
	"strings"

	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
	"github.com/agent-sandbox/sandbox-go/runtime/environment"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

// Environ is the answer of GET /env.
type Environ struct {
	Variables map[string]string `json:"variables"`
	Hidden    int               `json:"hidden" doc:"variables that are not shown, because their names are those of secrets"`
}

func (a *API) readEnv(w http.ResponseWriter, r *http.Request) {
	all := map[string]string{}
	a.opts.Env.AddTo(all)
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(r.URL.Query().Get("filter"), ",") {
		if name = strings.TrimSpace(name); name != "" {
			wanted[name] = true
		}
	}
	e := Environ{Variables: map[string]string{}}
	for name, value := range all {
		switch {
		case len(wanted) > 0 && !wanted[name]:
		case a.opts.Env.Secret(name):
			e.Hidden++
		default:
			e.Variables[toText([]byte(name))] = toText([]byte(value))
		}
	}
	endpoint.Answer(w, e)
}

// EnvRequest sets variables.
type EnvRequest struct {
	Vars map[string]string `json:"vars" required:"true"`
}

// EnvUpdated is the answer of POST /env.
type EnvUpdated struct {
	Updated []string `json:"updated" doc:"names, sorted"`
}

func (a *API) writeEnv(w http.ResponseWriter, r *http.Request) {
	var req EnvRequest
	if !endpoint.Decode(w, r, &req) {
		return
	}
	if req.Vars == nil {
		endpoint.Refuse(w, "vars is missing")
		return
	}
	names, err := a.opts.Env.Set(req.Vars)
	if p, ok := errors.AsType[*environment.ProtectedError](err); ok {
		fault.HTTP(w, http.StatusForbidden, "E3011", p.Error())
		return
	}
	if err != nil {
		endpoint.Refuse(w, "%v", err)
		return
	}
	if names == nil {
		names = []string{}
	}
	endpoint.Answer(w, EnvUpdated{names})
}
