package endpoint

import (
	"net/http"
	"slices"
	"strings"

	"github.com/gorilla/mux"

	"github.com/agent-sandbox/sandbox-go/runtime/fault"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Gate says which endpoints are on.
type Gate interface {
	// Endpoint is nil for an endpoint that is on.
	Endpoint(name string) error
}

// Defaults is the gate of a server that was told nothing: rows are on but for
// those that say Off.
type Defaults []Endpoint

// Endpoint implements [Gate]. A name without a row is off.
func (d Defaults) Endpoint(name string) error {
	for i := range d {
		if d[i].Name == name && !d[i].Off {
			return nil
		}
	}
	return errdefs.New("E8022", "", "endpoint "+name+" is not enabled")
}

// Router routes requests to rows. An endpoint that is off answers as a path that
// does not exist, but for its code. The rows of which around is not nil are
// wrapped in it, inside of the gate.
func Router(rows []Endpoint, gate Gate, around func(http.Handler) http.Handler) http.Handler {
	if gate == nil {
		gate = Defaults(rows)
	}
	// A path is what it says: nothing is redirected.
	router := mux.NewRouter().SkipClean(true)
	on := func(row Endpoint) bool { return gate.Endpoint(row.Name) == nil }
	for _, row := range rows {
		var h http.Handler = row.Handle
		if around != nil {
			h = around(h)
		}
		// The path comes first: a method that fits another path would make the router
		// forget that this path has no such method.
		router.Path(row.Path).Methods(row.Method).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !on(row) {
				notFound(w, r, "E8022")
				return
			}
			h.ServeHTTP(w, r)
		})
	}
	router.NotFoundHandler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { notFound(w, r, "") })
	router.MethodNotAllowedHandler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var allow []string
		off := false
		for _, row := range rows {
			other := r.Clone(r.Context())
			other.Method = row.Method
			match := mux.RouteMatch{}
			if !router.Match(other, &match) || match.MatchErr != nil || slices.Contains(allow, row.Method) {
				continue
			}
			if path, err := match.Route.GetPathTemplate(); err != nil || path != row.Path {
				continue
			}
			if !on(row) {
				off = true
				continue
			}
			allow = append(allow, row.Method)
		}
		if len(allow) == 0 {
			code := errdefs.Code("")
			if off {
				code = "E8022"
			}
			notFound(w, r, code)
			return
		}
		slices.Sort(allow)
		w.Header().Set("Allow", strings.Join(allow, ", "))
		fault.HTTP(w, http.StatusMethodNotAllowed, "E3006", "method "+r.Method+" is not for this path")
	})
	return router
}

// notFound answers as envd does for paths that it does not know.
func notFound(w http.ResponseWriter, r *http.Request, code errdefs.Code) {
	if code != "" {
		w.Header().Set(fault.Header, string(code))
	}
	http.NotFound(w, r)
}

// Var is a variable of the path pattern of the row that r was routed to.
func Var(r *http.Request, name string) string { return mux.Vars(r)[name] }
