//go:build linux

// Command apidoc writes the tables of docs/http-api.md from the endpoints of the
// server. With -check it only compares and exits 1 when the page is stale. It is
// run from the root of the module by make generate and make check.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"strings"

	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
	"github.com/agent-sandbox/sandbox-go/runtime/server"
)

const (
	page  = "docs/http-api.md"
	begin = "<!-- Written by internal/apidoc from the endpoints of runtime/server: do not edit up to the end mark. -->\n"
	end   = "<!-- end -->\n"
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

func run(args []string, stderr io.Writer) int {
	fs := flag.NewFlagSet("apidoc", flag.ContinueOnError)
	fs.SetOutput(stderr)
	check := fs.Bool("check", false, "compare only")
	if err := fs.Parse(args); err != nil || fs.NArg() > 0 {
		return 2
	}
	got, err := os.ReadFile(page)
	if err != nil {
		fmt.Fprintln(stderr, "apidoc:", err)
		return 1
	}
	before, rest, ok := bytes.Cut(got, []byte(begin))
	_, after, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		fmt.Fprintf(stderr, "apidoc: %s has no marks\n", page)
		return 1
	}
	want := bytes.Join([][]byte{before, []byte(begin), render(server.Endpoints()), []byte(end), after}, nil)
	switch {
	case bytes.Equal(got, want):
	case *check:
		fmt.Fprintf(stderr, "apidoc: %s is stale: run make generate\n", page)
		return 1
	default:
		if err := os.WriteFile(page, want, 0o644); err != nil {
			fmt.Fprintln(stderr, "apidoc:", err)
			return 1
		}
	}
	return 0
}

// variable is one of a path pattern.
var variable = regexp.MustCompile(`\{([a-z_]+)(?::[^{}]*)?\}`)

func render(rows []endpoint.Endpoint) []byte {
	var b bytes.Buffer
	last := ""
	for _, row := range rows {
		group, _, _ := strings.Cut(row.Name, ".")
		if group != last {
			fmt.Fprintf(&b, "\n### %s\n\n| name | path | | request | answer |\n|---|---|---|---|---|\n", group)
			last = group
		}
		name := "`" + row.Name + "`"
		if row.Off {
			name += " (off)"
		}
		fmt.Fprintf(&b, "| %s | `%s %s` | %s%s | %s | %s |\n", name, row.Method, variable.ReplaceAllString(row.Path, "{$1}"),
			row.Summary, refusals(row.Errors), request(row), answer(row))
	}
	b.WriteByte('\n')
	return b.Bytes()
}

func refusals(errs []endpoint.Error) string {
	var out []string
	for _, e := range errs {
		text := fmt.Sprintf("%d %s", e.Status, e.Summary)
		if e.Code != "" {
			text = fmt.Sprintf("%d %s %s", e.Status, e.Code, e.Summary)
		}
		out = append(out, text)
	}
	if out == nil {
		return ""
	}
	return "<br>" + strings.Join(out, "; ")
}

func request(row endpoint.Endpoint) string {
	var out []string
	for _, p := range row.Query {
		text := "`?" + p.Name + "`"
		if p.Default != "" {
			text += " " + p.Default
		}
		if p.Required {
			text += " (required)"
		}
		if p.Summary != "" {
			text += ": " + p.Summary
		}
		out = append(out, text)
	}
	if row.Request != nil {
		out = append(out, fields(reflect.TypeOf(row.Request))...)
	}
	if row.Accepts != "" {
		out = append(out, row.Accepts)
	}
	return strings.Join(out, "<br>")
}

func answer(row endpoint.Endpoint) string {
	var out []string
	if row.Response != nil {
		out = append(out, fields(reflect.TypeOf(row.Response))...)
	}
	if row.Produces != "" {
		out = append(out, row.Produces)
	}
	return strings.Join(out, "<br>")
}

// fields lists what a JSON object has.
func fields(t reflect.Type) []string {
	if t.Kind() != reflect.Struct {
		return []string{"any JSON"}
	}
	var out []string
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || !f.IsExported() || name == "-" {
			continue
		}
		text := "`" + name + "`"
		if v := f.Tag.Get("default"); v != "" {
			text += " " + v
		}
		if f.Tag.Get("required") != "" {
			text += " (required)"
		}
		doc := f.Tag.Get("doc")
		if v := f.Tag.Get("enum"); v != "" {
			doc = strings.TrimPrefix(strings.ReplaceAll(v, ",", ", ")+"; "+doc, "; ")
			doc = strings.TrimSuffix(doc, "; ")
		}
		if doc != "" {
			text += ": " + doc
		}
		out = append(out, text)
		if e := f.Type; e.Kind() == reflect.Slice && e.Elem().Kind() == reflect.Struct {
			for _, inner := range fields(e.Elem()) {
				out = append(out, "– "+inner)
			}
		}
	}
	return out
}
