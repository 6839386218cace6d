package config

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of docs/configuration.md")

const page = "../../docs/configuration.md"

// The page for users has the table that the code has.
func TestPage(t *testing.T) {
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(data), " -update -->\n")
	_, foot, ok2 := strings.Cut(rest, "<!-- end of settings -->")
	if !ok || !ok2 {
		t.Fatal("the page has no place for the table")
	}
	want := head + " -update -->\n" + markdown() + "<!-- end of settings -->" + foot
	if want == string(data) {
		return
	}
	if !*update {
		t.Fatal("docs/configuration.md differs from the table; run go test ./internal/config -update")
	}
	if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

var kinds = map[kind]string{
	text: "text", name: "name", region: "region", address: "address", host: "host", duration: "duration", toggle: "switch",
	number: "number", path: "path", secret: "secret", foreign: "",
}

func markdown() string {
	var b strings.Builder
	b.WriteString("| Setting | Key in files | Variables | Kind | Project | Default |\n|---|---|---|---|---|---|\n")
	for i := range table {
		s := &table[i]
		key := "–"
		switch {
		case s.place == inConfig:
			key = "`" + s.key + "`"
		case s.secret() && s.place == inCredentials:
			key = "`" + s.key + "` (credentials)"
		}
		vars := "–"
		if len(s.vars) > 0 {
			vars = "`" + strings.Join(s.vars, "`, `") + "`"
		}
		sort := kinds[s.kind]
		if s.kind == choice {
			sort = strings.Join(s.choices, ", ")
		}
		project := "no"
		switch {
		case s.kind == foreign:
			project = ""
		case s.project && s.place == inConfig:
			project = "yes"
		case s.project:
			project = "`.env`"
		}
		def := s.auto
		if def == "" {
			def = s.def
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", s.about, key, vars, sort, project, def)
	}
	return b.String()
}

// The table itself holds together.
func TestTable(t *testing.T) {
	keys, vars := map[string]bool{}, map[string]bool{}
	for i := range table {
		s := &table[i]
		if keys[s.key] || s.about == "" || s.key == "" {
			t.Errorf("%q is there twice, or says nothing", s.key)
		}
		keys[s.key] = true
		for _, v := range s.vars {
			if vars[v] || !isVariable(v) {
				t.Errorf("variable %s of %s", v, s.key)
			}
			vars[v] = true
		}
		if (s.kind == choice) != (len(s.choices) > 0) || s.secret() && s.place == inConfig || !s.secret() && s.place == inCredentials {
			t.Errorf("%s: kind and place don't fit", s.key)
		}
		if s.def != "" {
			if got, err := s.parse(s.def); err != nil || got != s.def {
				t.Errorf("%s: default %q: %q, %v", s.key, s.def, got, err)
			}
		}
		if s.project && (s.key == "insecure" || s.key == "ca_file" || s.key == "profile" || strings.HasSuffix(s.key, "_dir")) {
			t.Errorf("%s is not for projects", s.key)
		}
	}
	for _, o := range others {
		if findVar(o) != nil && o != "SANDBOX_WORKER" {
			t.Errorf("%s is a setting", o)
		}
	}
}
