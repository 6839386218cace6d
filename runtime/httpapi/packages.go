//go:build linux

package httpapi

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
	"github.com/agent-sandbox/sandbox-go/runtime/fault"
)

// packagesTime is how long a package manager may take.
const packagesTime = 10 * time.Second

// Package is one package.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Packages is the answer of GET /packages.
type Packages struct {
	Manager  string    `json:"manager"`
	Packages []Package `json:"packages" doc:"sorted by name"`
}

// managers are the programs that know packages, and how to read what they say.
var managers = map[string]struct {
	argv []string
	read func([]byte) ([]Package, error)
}{
	"pip": {[]string{"python3", "-m", "pip", "list", "--format=json", "--disable-pip-version-check", "--no-input"}, readPip},
	"npm": {[]string{"npm", "ls", "--global", "--json", "--depth=0"}, readNpm},
}

func (a *API) packages(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("manager")
	m, ok := managers[name]
	if !ok {
		endpoint.Refuse(w, "manager is %q, not pip or npm", name)
		return
	}
	res, err := a.run(r.Context(), &plan{argv: m.argv, limit: packagesTime})
	if err != nil {
		fault.Answer(w, err)
		return
	}
	// npm ends with 1 when it does not like what it found, and lists it.
	list, err := m.read([]byte(res.Stdout))
	if err != nil {
		fault.HTTP(w, http.StatusBadGateway, "E3002", name+" did not list packages, "+res.Status+": "+tailOf(res.Stderr))
		return
	}
	slices.SortFunc(list, func(a, b Package) int { return cmp.Compare(a.Name, b.Name) })
	endpoint.Answer(w, Packages{name, list})
}

// tailOf is the end of what a program complained about.
func tailOf(s string) string {
	const most = 1000
	if r := []rune(s); len(r) > most {
		return "…" + string(r[len(r)-most:])
	}
	return s
}

func readPip(b []byte) ([]Package, error) {
	list := []Package{}
	err := json.Unmarshal(b, &list)
	return list, err
}

func readNpm(b []byte) ([]Package, error) {
	var all struct {
		Dependencies map[string]struct {
			Version string `json:"version"`
		} `json:"dependencies"`
	}
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	list := []Package{}
	for name, p := range all.Dependencies {
		list = append(list, Package{name, p.Version})
	}
	return list, nil
}
