package main

import (
	"encoding/json"
	"testing"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

// Words of a command line have the types that arguments want.
func TestTypedValue(t *testing.T) {
	args := []sandboxfn.NamedArg{{Name: "s", Type: "string"}, {Name: "i", Type: "integer"}, {Name: "f", Type: "float"}, {Name: "b", Type: "boolean"}}
	for _, c := range []struct{ name, text, want string }{
		{"s", "7", `"7"`}, {"s", "", `""`}, {"s", "true", `"true"`},
		{"i", "7", `7`}, {"i", "-7", `-7`}, {"i", "9007199254740993", `9007199254740993`}, {"i", "often", `"often"`}, {"i", `"7"`, `"\"7\""`}, {"i", "null", `"null"`},
		{"f", "1.5e3", `1.5e3`}, {"f", "0x10", `"0x10"`}, {"f", "[1]", `"[1]"`},
		{"b", "true", `true`}, {"b", "0", `false`}, {"b", "maybe", `"maybe"`},
		{"unknown", "7", `"7"`},
	} {
		got, err := json.Marshal(typedValue(args, c.name, c.text))
		if err != nil || string(got) != c.want {
			t.Errorf("%s=%s: %s, %v; want %s", c.name, c.text, got, err, c.want)
		}
	}
}
