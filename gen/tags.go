package gen

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/agent-sandbox/sandbox-go/gen/directive"
)

// tagChecker reads the struct tags of the types that travel. Each field is
// reported once, however many functions reach it.
type tagChecker struct {
	a     *analysis
	done  map[token.Pos]bool
	files map[string]*ast.File // parsed for positions, by path
}

func newTagChecker(a *analysis) *tagChecker {
	return &tagChecker{a: a, done: make(map[token.Pos]bool), files: make(map[string]*ast.File)}
}

// sandboxItems are the items of the sandbox tag; builtItems have an effect.
var (
	sandboxItems = []string{"-", "default", "secret", "env", "file", "dir", "out", "name"}
	builtItems   = []string{"-", "name"}
)

// tagItem is one item of a sandbox tag.
type tagItem struct {
	key, value string
	hasValue   bool
}

// parseSandboxTag cuts a tag into its items: key or key=value, joined by
// commas; a value in single quotes may hold commas.
func parseSandboxTag(tag string) ([]tagItem, error) {
	var items []tagItem
	for rest := tag; ; {
		end := strings.IndexAny(rest, ",=")
		if end < 0 {
			end = len(rest)
		}
		item := tagItem{key: rest[:end]}
		rest = rest[end:]
		if strings.HasPrefix(rest, "=") {
			rest, item.hasValue = rest[1:], true
			if quoted, ok := strings.CutPrefix(rest, "'"); ok {
				value, after, closed := strings.Cut(quoted, "'")
				if !closed {
					return nil, fmt.Errorf("the closing ' of %s is missing", item.key)
				}
				item.value, rest = value, after
				if rest != "" && rest[0] != ',' {
					return nil, fmt.Errorf("%q follows the closing ' of %s", rest, item.key)
				}
			} else {
				end := strings.IndexByte(rest, ',')
				if end < 0 {
					end = len(rest)
				}
				item.value, rest = rest[:end], rest[end:]
			}
		}
		if item.key == "" {
			return nil, fmt.Errorf("an item has no name")
		}
		items = append(items, item)
		if rest == "" {
			return items, nil
		}
		rest = rest[1:]
	}
}

// sandboxTag reports what is wrong with the sandbox tag of a field of owner.
func (c *tagChecker) sandboxTag(owner string, f *types.Var, tag string) {
	if tag == "" || c.done[f.Pos()] {
		return
	}
	c.done[f.Pos()] = true
	subject := "sandbox tag of " + owner + "." + f.Name()
	fail := func(format string, args ...any) {
		pos, end := c.tagPos(f)
		c.a.faults.add2(pos, end, "G040", subject+fmt.Sprintf(format, args...))
	}
	keys, formed := tagKeys(tag)
	for _, k := range keys {
		if k != "sandbox" && directive.Similar(k, "sandbox") {
			fail(": the tag is spelled %s; write sandbox", show(k))
			return
		}
	}
	value, ok := reflect.StructTag(tag).Lookup("sandbox")
	if !ok {
		if !formed && strings.Contains(tag, "sandbox") {
			fail(" is not well formed: write sandbox:\"…\" without a space after the colon")
		}
		return
	}
	items, err := parseSandboxTag(value)
	if err != nil {
		fail(" is not well formed: %v", err)
		return
	}
	for _, it := range items {
		switch {
		case !slices.Contains(sandboxItems, it.key):
			if near := directive.Nearest(it.key, sandboxItems); near != "" {
				fail(": unknown item %s; did you mean %s?", show(it.key), near)
			} else {
				fail(": unknown item %s; items are %s", show(it.key), strings.Join(builtItems, ", "))
			}
		case !slices.Contains(builtItems, it.key):
			fail(": item %s is not supported yet by this version", it.key)
		case it.key == "-" && it.hasValue:
			fail(" is not well formed: - takes no value")
		case it.key == "name" && it.value == "":
			fail(" is not well formed: name needs a value")
		case it.key == "-" && len(items) > 1:
			fail(" is not well formed: a field that is left out takes no other item")
			return
		}
	}
}

// tagKeys lists the keys of a struct tag and reports whether it has the
// conventional form throughout.
func tagKeys(tag string) (keys []string, formed bool) {
	for {
		tag = strings.TrimLeft(tag, " ")
		if tag == "" {
			return keys, true
		}
		key, rest, ok := strings.Cut(tag, ":")
		if !ok || key == "" || strings.ContainsAny(key, " \"\t") || !strings.HasPrefix(rest, `"`) {
			return keys, false
		}
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return keys, false
		}
		keys = append(keys, key)
		tag = rest[len(quoted):]
		if tag != "" && tag[0] != ' ' {
			return keys, false
		}
	}
}

// tagPos is where the tag of a field stands in its source.
func (c *tagChecker) tagPos(f *types.Var) (pos, end token.Position) {
	if field, _ := c.a.sourceOf(f); field != nil && field.Tag != nil {
		return c.a.faults.position(field.Tag.Pos()), c.a.faults.position(field.Tag.End())
	}
	return c.a.faults.position(f.Pos()), token.Position{}
}

// fieldPos is where a field is declared, with its column.
func (a *analysis) fieldPos(f *types.Var) string {
	if _, name := a.sourceOf(f); name != nil {
		return a.faults.at(name.Pos())
	}
	return a.faults.at(f.Pos())
}

// sourceOf finds the source of a field. Export data knows only its line, so
// files of other packages are read for the rest.
func (a *analysis) sourceOf(f *types.Var) (*ast.Field, *ast.Ident) {
	at := a.g.fset.PositionFor(f.Pos(), false)
	var file *ast.File
	for _, s := range a.checked.info.files {
		if s.path == at.Filename {
			file = s.ast
		}
	}
	if file == nil {
		var known bool
		if file, known = a.tags.files[at.Filename]; !known {
			file, _ = parser.ParseFile(a.g.fset, at.Filename, nil, parser.SkipObjectResolution)
			a.tags.files[at.Filename] = file
		}
	}
	if file == nil {
		return nil, nil
	}
	var field *ast.Field
	var name *ast.Ident
	ast.Inspect(file, func(n ast.Node) bool {
		s, ok := n.(*ast.StructType)
		if !ok || field != nil {
			return field == nil
		}
		for _, candidate := range s.Fields.List {
			ids := candidate.Names
			if len(ids) == 0 {
				ids = []*ast.Ident{embeddedName(candidate.Type)}
			}
			for _, id := range ids {
				if id != nil && id.Name == f.Name() && a.g.fset.PositionFor(id.Pos(), false).Line == at.Line {
					field, name = candidate, id
					return false
				}
			}
		}
		return true
	})
	return field, name
}

// embeddedName is the identifier that names an embedded field.
func embeddedName(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.StarExpr:
			e = x.X
		case *ast.SelectorExpr:
			return x.Sel
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}
