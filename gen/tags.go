package gen

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

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

// sandboxItems are the items of the sandbox tag.
var sandboxItems = []string{"-", "default", "secret", "env", "file", "dir", "out", "name"}

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
	seen := make(map[string]bool)
	for _, it := range items {
		switch known := slices.Contains(sandboxItems, it.key); {
		case !known:
			if near := directive.Nearest(it.key, sandboxItems); near != "" {
				fail(": unknown item %s; did you mean %s?", show(it.key), near)
			} else {
				fail(": unknown item %s; items are %s", show(it.key), strings.Join(sandboxItems, ", "))
			}
			return
		case seen[it.key]:
			fail(" is not well formed: %s stands twice", it.key)
			return
		case slices.Contains(valued, it.key) && it.key != "default" && it.value == "", it.key == "default" && !it.hasValue:
			fail(" is not well formed: %s needs a value", it.key)
			return
		case !slices.Contains(valued, it.key) && it.hasValue:
			fail(" is not well formed: %s takes no value", it.key)
			return
		}
		seen[it.key] = true
	}
	if problem := itemsFault(f, items, seen); problem != "" {
		fail("%s", problem)
		return
	}
	if seen["secret"] && !isSecretText(f.Type()) {
		pos, end := c.tagPos(f)
		c.a.faults.add2(pos, end, "G042", fmt.Sprintf("%s is filled from secret %s and must be string, []byte or sandboxfn.Secret",
			f.Name(), show(valueOf(items, "secret"))))
	}
}

// valued are the items that need a value.
var valued = []string{"default", "secret", "env", "name"}

// valueOf is the value of an item.
func valueOf(items []tagItem, key string) string {
	for _, it := range items {
		if it.key == key {
			return it.value
		}
	}
	return ""
}

// itemsFault says what is wrong with items that are well formed each.
func itemsFault(f *types.Var, items []tagItem, seen map[string]bool) string {
	for _, pair := range exclusive {
		if seen[pair[0]] && seen[pair[1]] {
			return fmt.Sprintf(": items %s and %s exclude each other", pair[0], pair[1])
		}
	}
	t := spelled(f.Type(), f.Pkg())
	for _, it := range items {
		switch it.key {
		case "-":
			if len(items) > 1 {
				return " is not well formed: a field that is left out takes no other item"
			}
			continue
		case "secret", "env":
			if !directive.IsVariable(it.value) {
				return fmt.Sprintf(": %s is not the name of a variable", show(it.value))
			}
			if it.key == "env" && !fillable(f.Type()) {
				return fmt.Sprintf(": a variable can't be given to type %s", t)
			}
		case "default":
			if !fillable(f.Type()) {
				return fmt.Sprintf(": a default can't be given to type %s", t)
			}
			if !fits(f.Type(), it.value) {
				return fmt.Sprintf(": default %q is no %s", it.value, t)
			}
		case "file", "dir":
			if s, list := f.Type().Underlying().(*types.Slice); !isKind(f.Type(), types.String) && (!list || !types.Identical(s.Elem(), types.Typ[types.String])) {
				return fmt.Sprintf(": a field of type %s can't hold paths; %s is for string and []string", t, it.key)
			}
		case "out":
			if !seen["file"] && !seen["dir"] {
				return ": out says which way a file or dir goes; write file,out or dir,out"
			}
		}
		if !f.Exported() {
			return fmt.Sprintf(": %s needs an exported field", it.key)
		}
	}
	return ""
}

// exclusive are items of which a field can have one.
var exclusive = [][2]string{
	{"secret", "env"}, {"secret", "name"}, {"env", "name"}, {"file", "dir"},
	{"secret", "file"}, {"secret", "dir"}, {"env", "file"}, {"env", "dir"}, {"default", "file"}, {"default", "dir"},
}

// isKind reports whether t is of a basic kind.
func isKind(t types.Type, kind types.BasicKind) bool {
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Kind() == kind
}

// isBytes reports whether t is a slice of bytes.
func isBytes(t types.Type) bool {
	s, ok := t.Underlying().(*types.Slice)
	return ok && isKind(s.Elem(), types.Uint8)
}

// isSecretText reports whether a field can be filled from a secret.
func isSecretText(t types.Type) bool {
	return isKind(t, types.String) || isBytes(t) || isNamed(t, sandboxfnPath, "Secret")
}

// fillable reports whether a field can be filled from text: it is of a basic
// kind, a duration, or a list of them.
func fillable(t types.Type) bool {
	if s, ok := t.Underlying().(*types.Slice); ok {
		t = s.Elem()
	}
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&(types.IsBoolean|types.IsInteger|types.IsFloat|types.IsString) != 0 && b.Kind() != types.Uintptr
}

// fits reports whether text stands for a value of a type that can be filled, as
// the runtime library will read it.
func fits(t types.Type, text string) bool {
	if isNamed(t, "time", "Duration") {
		_, err := time.ParseDuration(text)
		return err == nil
	}
	if s, ok := t.Underlying().(*types.Slice); ok {
		if isBytes(t) || text == "" {
			return true
		}
		for part := range strings.SplitSeq(text, ",") {
			if !fits(s.Elem(), part) {
				return false
			}
		}
		return true
	}
	b := t.Underlying().(*types.Basic)
	bits := map[types.BasicKind]int{
		types.Int8: 8, types.Int16: 16, types.Int32: 32, types.Uint8: 8, types.Uint16: 16, types.Uint32: 32, types.Float32: 32,
	}[b.Kind()]
	bits = cmp.Or(bits, 64)
	var err error
	switch {
	case b.Info()&types.IsBoolean != 0:
		_, err = strconv.ParseBool(text)
	case b.Info()&types.IsUnsigned != 0:
		_, err = strconv.ParseUint(text, 0, bits)
	case b.Info()&types.IsInteger != 0:
		_, err = strconv.ParseInt(text, 0, bits)
	case b.Info()&types.IsFloat != 0:
		_, err = strconv.ParseFloat(text, bits)
	}
	return err == nil
}

// sandboxItemsOf are the items of the sandbox tag of a field; none when it is
// not well formed.
func sandboxItemsOf(tags reflect.StructTag) []tagItem {
	value, ok := tags.Lookup("sandbox")
	if !ok {
		return nil
	}
	items, err := parseSandboxTag(value)
	if err != nil {
		return nil
	}
	return items
}

// secretsOf are the secrets that a field with the given tag is filled from.
func secretsOf(tag string) []string {
	var names []string
	for _, it := range sandboxItemsOf(reflect.StructTag(tag)) {
		if it.key == "secret" && directive.IsVariable(it.value) {
			names = append(names, it.value)
		}
	}
	return names
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
