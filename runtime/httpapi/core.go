//go:build linux

package httpapi

import (
	"net/http"
	"strings"

	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
)

func (a *API) coreRows() []endpoint.Endpoint {
	return []endpoint.Endpoint{
		{
			Name: "core.capabilities", Method: http.MethodGet, Path: "/capabilities",
			Summary:  "What is switched on: groups and single endpoints.",
			Response: Capabilities{}, Handle: a.capabilities,
		},
		{
			Name: "core.openapi", Method: http.MethodGet, Path: "/openapi.json",
			Summary:  "This API as an OpenAPI 3.1 document, with the endpoints that are off left out.",
			Produces: "application/json", Handle: a.document,
		},
	}
}

// Capabilities is the answer of GET /capabilities.
type Capabilities struct {
	Version   string          `json:"version" doc:"of this API"`
	Groups    map[string]bool `json:"groups" doc:"whether anything of a group is on"`
	Endpoints map[string]bool `json:"endpoints" doc:"by name, group.endpoint"`
}

func (a *API) capabilities(w http.ResponseWriter, _ *http.Request) {
	c := Capabilities{Version: Version, Groups: map[string]bool{}, Endpoints: map[string]bool{}}
	for _, row := range a.rows {
		on := a.gate.Endpoint(row.Name) == nil
		group, _, _ := strings.Cut(row.Name, ".")
		c.Groups[group] = c.Groups[group] || on
		c.Endpoints[row.Name] = on
	}
	endpoint.Answer(w, c)
}

func (a *API) document(w http.ResponseWriter, _ *http.Request) {
	var on []endpoint.Endpoint
	for _, row := range a.rows {
		if row.Path != "" && a.gate.Endpoint(row.Name) == nil {
			on = append(on, row)
		}
	}
	endpoint.Answer(w, OpenAPI(on))
}
