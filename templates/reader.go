package templates

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	yamlerrors "github.com/goccy/go-yaml"
)

// Bounds of a template file. The YAML parser recurses into what is nested, so a
// file that nests without end must not reach it.
const (
	maxFile  = 1 << 20
	maxDepth = 64
	maxKeys  = 5000 // the parser's time grows with their square
)

// place is where something was said.
type place struct{ line, col int }

// reader turns the nodes of one file into a model. It goes on after a mistake, so
// that all of them are told at once.
type reader struct {
	file     string
	problems []Problem
	at       map[string]place // path in the model → where the file says it
	bad      map[string]bool  // paths whose value could not be read
}

// newReader returns a reader of one file.
func newReader(file string) *reader {
	return &reader{file: file, at: map[string]place{}, bad: map[string]bool{}}
}

// failAt records a problem at the place of a path of the model, or of the nearest
// one above it that the file names.
func (r *reader) failAt(path, message, hint string) {
	for {
		p, ok := r.at[path]
		if !ok && path == "" {
			p, ok = r.at["."], true
		}
		if ok {
			r.problems = append(r.problems, Problem{File: r.file, Line: p.line, Col: p.col, Message: message, Hint: hint})
			return
		}
		path = path[:max(lastPart(path), 0)]
	}
}

// lastPart is where the last part of a path of the model begins; -1 when it has one
// part only.
func lastPart(path string) int { return strings.LastIndexAny(path, ".[") }

// failModel is failAt for what the model lacks or has wrong, unless that is so
// because the file could not be read there, which is said already.
func (r *reader) failModel(path, message, hint string) {
	for bad := range r.bad {
		if bad == path || below(bad, path) || below(path, bad) {
			return
		}
	}
	r.failAt(path, message, hint)
}

// below reports whether a path of the model is inside another.
func below(path, root string) bool {
	rest, ok := strings.CutPrefix(path, root)
	return ok && rest != "" && (rest[0] == '.' || rest[0] == '[')
}

// fail records a problem at a node.
func (r *reader) fail(n ast.Node, message, hint string) {
	p := position(n)
	r.problems = append(r.problems, Problem{File: r.file, Line: p.line, Col: p.col, Message: message, Hint: hint})
}

// claim records that a node gives the value of a path of the model, and refuses a
// second one: several keys are spellings of one thing.
func (r *reader) claim(path string, key ast.Node) bool {
	if p, ok := r.at[path]; ok {
		r.fail(key, fmt.Sprintf("%s is already said at line %d", keyText(key), p.line), "keep one of the two")
		return false
	}
	r.at[path] = position(key)
	return true
}

// position is where a node begins. The token of a block mapping is its first
// colon, so the key decides.
func position(n ast.Node) place {
	switch v := n.(type) {
	case *ast.MappingNode:
		if len(v.Values) > 0 && !v.IsFlowStyle {
			return position(v.Values[0])
		}
	case *ast.MappingValueNode:
		return position(v.Key)
	}
	t := n.GetToken()
	if t == nil || t.Position == nil {
		return place{}
	}
	return place{t.Position.Line, t.Position.Column}
}

// document parses a file into its one mapping. The second result is false when
// there is nothing to go on with.
func (r *reader) document(data []byte) (*ast.MappingNode, bool) {
	whole := func(line, col int, message string) (*ast.MappingNode, bool) {
		r.problems = append(r.problems, Problem{File: r.file, Line: line, Col: col, Message: message})
		return nil, false
	}
	switch {
	case len(data) > maxFile:
		return whole(0, 0, fmt.Sprintf("the file is larger than %d bytes", maxFile))
	case !utf8.Valid(data):
		line, col := invalidUTF8(data)
		return whole(line, col, "the file is not UTF-8 text")
	}
	text := strings.TrimPrefix(string(data), "\ufeff")
	if line, col, message := tooMuch(text); line > 0 {
		return whole(line, col, message)
	}
	file, err := parse(text)
	if err != nil {
		if e, ok := errors.AsType[*yamlerrors.SyntaxError](err); ok && e.Token != nil && e.Token.Position != nil {
			return whole(e.Token.Position.Line, e.Token.Position.Column, "not YAML: "+e.Message)
		}
		return whole(0, 0, "not YAML: "+strings.SplitN(err.Error(), "\n", 2)[0])
	}
	var body ast.Node
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil || doc.Body.Type() == ast.CommentType || doc.Body.Type() == ast.NullType:
		case body != nil:
			r.fail(doc.Body, "a second document", "a file holds one template")
			return nil, false
		default:
			body = doc.Body
		}
	}
	if body == nil {
		return whole(1, 1, "the file says nothing")
	}
	return r.mapping(body, "a template")
}

// parse calls the YAML parser, whose panics are mistakes of the file like others.
func parse(text string) (file *ast.File, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("cannot be parsed: %v", p)
		}
	}()
	return parser.ParseBytes([]byte(text), 0, parser.AllowDuplicateMapKey())
}

// tooMuch finds the first place that is nested too deeply, or has too many keys
// before it. It asks the lexer, which does not recurse.
func tooMuch(text string) (line, col int, message string) {
	flow, row, inRow, keys := 0, 0, 0, 0
	for _, t := range lexer.Tokenize(text) {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow = max(flow-1, 0)
		case token.SequenceEntryType, token.MappingKeyType:
			if t.Position.Line != row {
				row, inRow = t.Position.Line, 0
			}
			inRow++
		case token.MappingValueType:
			if keys++; keys > maxKeys {
				return t.Position.Line, t.Position.Column, fmt.Sprintf("more than %d keys", maxKeys)
			}
		}
		// Below an indentation of maxDepth there is one block for each column at most.
		if flow > maxDepth || inRow > maxDepth || t.Type != token.CommentType && t.Position.IndentNum > 16*maxDepth {
			return t.Position.Line, t.Position.Column, fmt.Sprintf("nested deeper than %d levels", maxDepth)
		}
	}
	return 0, 0, ""
}

func invalidUTF8(data []byte) (line, col int) {
	line, col = 1, 1
	for len(data) > 0 {
		c, n := utf8.DecodeRune(data)
		if c == utf8.RuneError && n == 1 {
			break
		}
		if col++; c == '\n' {
			line, col = line+1, 1
		}
		data = data[n:]
	}
	return line, col
}

// mapping returns n as a mapping whose keys are plain and different.
func (r *reader) mapping(n ast.Node, what string) (*ast.MappingNode, bool) {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		r.wrong(n, what, "a mapping")
		return nil, false
	}
	seen := map[string]place{}
	out := *m
	out.Values = nil
	for _, v := range m.Values {
		key := keyText(v.Key)
		switch {
		case v.Key.Type() == ast.MergeKeyType:
			r.fail(v.Key, "merge keys are not read in templates", "write the keys out")
			continue
		case v.Key.Type() == ast.AnchorType || v.Key.Type() == ast.AliasType || v.Key.Type() == ast.TagType:
			r.wrong(v.Key, "a key", "text")
			continue
		case seen[key] != place{}:
			r.fail(v.Key, fmt.Sprintf("key %q is there twice", key), fmt.Sprintf("first at line %d", seen[key].line))
			continue
		}
		seen[key] = position(v.Key)
		out.Values = append(out.Values, v)
	}
	return &out, true
}

// keyText is a key as it was meant: without quotes.
func keyText(n ast.Node) string {
	switch v := n.(type) {
	case *ast.StringNode:
		return v.Value
	case *ast.MappingKeyNode:
		return keyText(v.Value)
	}
	return n.GetToken().Value
}

// fields reads a mapping by a table: every key must be in it.
func (r *reader) fields(m *ast.MappingNode, what string, table []field) {
	for _, v := range m.Values {
		key := keyText(v.Key)
		f := find(table, key)
		if f == nil {
			hint := refused[key]
			if hint == "" {
				hint = didYouMean(key, keys(table))
			}
			if hint == "" && len(table) <= 12 {
				hint = "known are " + strings.Join(keys(table), ", ")
			}
			r.fail(v.Key, fmt.Sprintf("unknown key %q in %s", key, what), hint)
			continue
		}
		if isNull(v.Value) {
			continue // says nothing, as in YAML
		}
		f.read(r, v.Key, v.Value)
	}
}

func isNull(n ast.Node) bool { return n == nil || n.Type() == ast.NullType }

// wrong records a value of the wrong kind.
func (r *reader) wrong(n ast.Node, what, want string) {
	hint := ""
	switch n.Type() {
	case ast.AnchorType, ast.AliasType:
		r.fail(n, "anchors and aliases are not read in templates", "write the value out")
		return
	case ast.TagType:
		r.fail(n, "tags are not read in templates", "leave it out")
		return
	case ast.IntegerType, ast.FloatType, ast.BoolType, ast.InfinityType, ast.NanType:
		if want == "text" {
			hint = fmt.Sprintf("put it in quotes: %q", n.GetToken().Value)
		}
	case ast.StringType:
		if want == "true or false" {
			hint = "without quotes; yes, no, on and off are text"
		}
	}
	r.fail(n, fmt.Sprintf("%s is %s, not %s", what, kind(n), want), hint)
}

// kind names the kind of a node.
func kind(n ast.Node) string {
	switch n.Type() {
	case ast.MappingType, ast.MappingValueType:
		return "a mapping"
	case ast.SequenceType:
		return "a list"
	case ast.StringType, ast.LiteralType:
		return "text"
	case ast.IntegerType, ast.FloatType, ast.InfinityType, ast.NanType:
		return "a number"
	case ast.BoolType:
		return n.GetToken().Value
	case ast.NullType:
		return "empty"
	}
	return "something else"
}

// text reads text.
func (r *reader) text(n ast.Node, what string) (string, bool) {
	switch v := n.(type) {
	case *ast.StringNode:
		return v.Value, r.printable(n, v.Value)
	case *ast.LiteralNode:
		return v.Value.Value, r.printable(n, v.Value.Value)
	}
	r.wrong(n, what, "text")
	return "", false
}

// printable refuses text that no file, program or terminal takes.
func (r *reader) printable(n ast.Node, s string) bool {
	if strings.ContainsRune(s, 0) {
		r.fail(n, "holds a NUL character", "")
		return false
	}
	return true
}

// scalar reads text, or a number or truth value as the file writes it.
func (r *reader) scalar(n ast.Node, what string) (string, bool) {
	switch n.Type() {
	case ast.IntegerType, ast.FloatType, ast.BoolType:
		return n.GetToken().Value, true
	}
	return r.text(n, what)
}

// integer reads a whole number.
func (r *reader) integer(n ast.Node, what string) (int64, bool) {
	if n.Type() == ast.IntegerType {
		if v, err := strconv.ParseInt(n.GetToken().Value, 10, 64); err == nil {
			return v, true
		}
		r.fail(n, fmt.Sprintf("%s is not a whole number in decimal, or too large", what), "")
		return 0, false
	}
	r.wrong(n, what, "a whole number")
	return 0, false
}

// list reads a list.
func (r *reader) list(n ast.Node, what string) ([]ast.Node, bool) {
	s, ok := n.(*ast.SequenceNode)
	if !ok {
		r.wrong(n, what, "a list")
		return nil, false
	}
	return s.Values, true
}
