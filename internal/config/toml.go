package config

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// An item is one key of a TOML file, or one of its tables.
type item struct {
	path  []string
	value any // nil for a table
	line  int // 0: not known
}

func (i item) key() string { return strings.Join(i.path, ".") }

// parseTOML lists what a file holds, in the order of its lines. The error says
// the line and never shows the text, which may be a secret.
func parseTOML(data []byte) ([]item, error) {
	var at locator
	if at.locate(data); at.deep > 0 {
		return nil, fmt.Errorf("line %d has a key of more than %d parts", at.deep, maxDepth)
	}
	var doc map[string]any
	if err := toml.Unmarshal(data, &doc); err != nil {
		if d, ok := errors.AsType[*toml.DecodeError](err); ok {
			row, col := d.Position()
			return nil, fmt.Errorf("line %d, column %d is not TOML", row, col)
		}
		return nil, errors.New("the file is not TOML")
	}
	var items []item
	flatten(nil, doc, at.lines, &items)
	slices.SortStableFunc(items, func(a, b item) int {
		if a.line != b.line {
			return a.line - b.line
		}
		return slices.Compare(a.path, b.path)
	})
	return items, nil
}

func flatten(path []string, table map[string]any, lines map[string]int, to *[]item) {
	for k, v := range table {
		at := append(slices.Clone(path), k)
		it := item{path: at, line: lines[strings.Join(at, "\x00")]}
		if sub, ok := v.(map[string]any); ok {
			*to = append(*to, it)
			flatten(at, sub, lines, to)
			continue
		}
		it.value = v
		*to = append(*to, it)
	}
}

// maxDepth bounds the parts of a key. No setting has as many; a file that has
// would take time and stack.
const maxDepth = 8

// A locator finds the lines of keys, in one pass.
type locator struct {
	lines map[string]int // by path, parts separated by a NUL byte
	deep  int            // line of the first key of too many parts

	parser unstable.Parser
	offset int // of the last key
	line   int // its line, from 0
}

// locate ends at the first mistake; the decoder then says what it is.
func (l *locator) locate(data []byte) {
	l.lines = map[string]int{}
	l.parser.Reset(data)
	var table []string
	for l.deep == 0 && l.parser.NextExpression() {
		e := l.parser.Expression()
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = l.key(nil, e)
		case unstable.KeyValue:
			l.value(table, e)
		}
	}
}

// key notes the line of a key and of the tables it names on the way, and
// returns its whole path.
func (l *locator) key(table []string, n *unstable.Node) []string {
	path := slices.Clone(table)
	for it := n.Key(); it.Next(); {
		part := it.Node()
		if at := int(part.Raw.Offset); at >= l.offset {
			l.line += bytes.Count(l.parser.Data()[l.offset:at], []byte("\n"))
			l.offset = at
		}
		if len(path) == maxDepth {
			l.deep = l.line + 1
			break
		}
		path = append(path, string(part.Data))
		if key := strings.Join(path, "\x00"); l.lines[key] == 0 {
			l.lines[key] = l.line + 1
		}
	}
	return path
}

func (l *locator) value(table []string, n *unstable.Node) {
	path := l.key(table, n)
	v := n.Value()
	if v == nil || v.Kind != unstable.InlineTable {
		return
	}
	for it := v.Children(); it.Next() && l.deep == 0; {
		if c := it.Node(); c.Kind == unstable.KeyValue {
			l.value(path, c)
		}
	}
}

// textOf is the text of a TOML value that a setting can have.
func textOf(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case bool:
		return strconv.FormatBool(v), nil
	}
	return "", errors.New("not a text, a number or true or false")
}

// wordsOf is the value of api_key_command.
func wordsOf(v any) ([]string, error) {
	list, _ := v.([]any)
	var words []string
	for _, w := range list {
		s, ok := w.(string)
		if !ok || strings.ContainsRune(s, 0) {
			return nil, errCommandForm
		}
		words = append(words, s)
	}
	if len(words) == 0 || words[0] == "" {
		return nil, errCommandForm
	}
	return words, nil
}

var errCommandForm = errors.New(`not a program with its arguments, as in ["prog", "arg"]`)
