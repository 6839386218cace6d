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
	routes := make([]*mux.Route, len(rows))
	on := func(row *Endpoint) bool { return gate.Endpoint(row.Name) == nil }
	for i := range rows {
		row := &rows[i]
		var h http.Handler = row.Handle
		if around != nil {
			h = around(h)
		}
		routes[i] = router.Methods(row.Method).Path(row.Path).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !on(row) {
				notFound(w, r, "E8022")
				return
			}
			h.ServeHTTP(w, r)
		})
	}
	// Another method of a path that is there, or nothing.
	other := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var allow []string
		code := errdefs.Code("")
		for i, route := range routes {
			with := r.Clone(r.Context())
			with.Method = rows[i].Method
			switch {
			case !route.Match(with, &mux.RouteMatch{}):
			case on(&rows[i]):
				allow = append(allow, rows[i].Method)
			default:
				code = "E8022"
			}
		}
		if len(allow) == 0 {
			notFound(w, r, code)
			return
		}
		slices.Sort(allow)
		w.Header().Set("Allow", strings.Join(slices.Compact(allow), ", "))
		fault.HTTP(w, http.StatusMethodNotAllowed, "E3006", "method "+r.Method+" is not for this path")
	})
	router.NotFoundHandler, router.MethodNotAllowedHandler = other, other
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
