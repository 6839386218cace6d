// Package endpoint describes the endpoints of the runtime's HTTP API. One table of
// them routes, switches on and off, and documents the API, so that the three
// cannot differ. The packages that offer something list their rows; the server
// puts them together.
package endpoint

import "net/http"

// Endpoint is one row of the table.
type Endpoint struct {
	Name    string // "group.endpoint", what switches and the policy call it
	Method  string
	Path    string // pattern of gorilla/mux
	Summary string // one sentence

	Query    []Param // parameters of the query
	Request  any     // a value of the type of the JSON body; nil: no JSON body
	Accepts  string  // media type of a body that is not JSON
	Response any     // a value of the type of the JSON answer; nil: no JSON answer
	Produces string  // media type of an answer that is not JSON
	Errors   []Error // answers that refuse, beside those that all endpoints have

	Open bool // needs no token
	Off  bool // must be switched on by name

	Handle http.HandlerFunc
}

// Param is one parameter of a query.
type Param struct {
	Name     string
	Type     string // string, integer, boolean
	Required bool
	Default  string
	Summary  string
}

// Error is one way to refuse.
type Error struct {
	Status  int
	Code    string // of errdefs, "" where there is none
	Summary string
}
