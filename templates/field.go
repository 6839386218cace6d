package templates

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// field is one key of a template file. The tables of fields read the files, and
// the reference in docs/templates.md is written from them.
type field struct {
	key  string
	typ  string // as documented
	doc  string
	sub  []field // of a mapping, of the elements of a list or of the values of a mapping by name
	read func(r *reader, key, value ast.Node)
}

// refused are keys that other forms have, or once had, and what to write instead.
var refused = map[string]string{
	"packages":   "write system_packages, python_packages or node_packages",
	"files":      "write copy_files",
	"entrypoint": "write start",
	"timeout":    "write lifetime below resources",
	"skills":     "skills are not part of templates",
	"template":   "write base: {from: …}",
	"image":      "write base",
	"envs":       "write env",
}

func find(table []field, key string) *field {
	for i := range table {
		if table[i].key == key {
			return &table[i]
		}
	}
	return nil
}

func keys(table []field) []string {
	var out []string
	for _, f := range table {
		out = append(out, f.key)
	}
	return out
}

// value makes a field of one value that get reads and set takes. Path is that of
// the model.
func value[T any](key, typ, path, doc string, dst *T, get func(*reader, ast.Node, string) (T, bool)) field {
	return field{key: key, typ: typ, doc: doc, read: func(r *reader, k, n ast.Node) {
		if !r.claim(path, k) {
			return
		}
		if v, ok := get(r, n, key); ok {
			*dst = v
			r.at[path] = position(n)
		} else {
			r.bad[path] = true
		}
	}}
}

func text(key, path, doc string, dst *string) field {
	return value(key, "text", path, doc, dst, (*reader).text)
}

func boolean(key, path, doc string, dst *bool) field {
	return value(key, "true or false", path, doc, dst, readBool)
}

func optionalBool(key, path, doc string, dst **bool) field {
	return value(key, "true or false", path, doc, dst, func(r *reader, n ast.Node, what string) (*bool, bool) {
		b, ok := readBool(r, n, what)
		return &b, ok
	})
}

func readBool(r *reader, n ast.Node, what string) (bool, bool) {
	b, ok := n.(*ast.BoolNode)
	if !ok {
		r.wrong(n, what, "true or false")
		return false, false
	}
	return b.Value, true
}

// number is a whole number that is not negative.
func number(key, path, doc string, dst *int) field {
	return value(key, "whole number", path, doc, dst, readCount)
}

func readCount(r *reader, n ast.Node, what string) (int, bool) {
	v, ok := r.integer(n, what)
	if ok && (v < 0 || v > math.MaxInt32) {
		r.fail(n, fmt.Sprintf("%s is %d; it must be from 0 to %d", what, v, math.MaxInt32), "")
		return 0, false
	}
	return int(v), ok
}

func cores(key, path, doc string, dst *float64) field {
	return value(key, "number", path, doc, dst, func(r *reader, n ast.Node, what string) (float64, bool) {
		var f float64
		if n.Type() != ast.IntegerType && n.Type() != ast.FloatType {
			r.wrong(n, what, "a number")
			return 0, false
		}
		if _, err := fmt.Sscan(n.GetToken().Value, &f); err != nil || f <= 0 || f > 4096 {
			r.fail(n, fmt.Sprintf("%s is %s; it must be above 0 and at most 4096", what, n.GetToken().Value), "")
			return 0, false
		}
		return f, true
	})
}

// megabytes is a whole number of MiB, or a size with a unit, rounded up.
func megabytes(key, path, doc string, dst *int) field {
	return value(key, "MiB, or a size", path, doc, dst, func(r *reader, n ast.Node, what string) (int, bool) {
		if n.Type() == ast.IntegerType {
			return readCount(r, n, what)
		}
		b, ok := readSize(r, n, what)
		if b = (b + mib - 1) / mib; b > math.MaxInt32 {
			r.fail(n, what+" is too large", "")
			return 0, false
		}
		return int(b), ok
	})
}

// size is bytes, or a size with a unit.
func size(key, path, doc string, dst *int64) field {
	return value(key, "bytes, or a size", path, doc, dst, func(r *reader, n ast.Node, what string) (int64, bool) {
		if n.Type() == ast.IntegerType {
			v, ok := r.integer(n, what)
			if ok && v < 0 {
				r.fail(n, what+" is below zero", "")
				return 0, false
			}
			return v, ok
		}
		return readSize(r, n, what)
	})
}

func readSize(r *reader, n ast.Node, what string) (int64, bool) {
	s, ok := r.text(n, what)
	if !ok {
		return 0, false
	}
	b, err := parseSize(s)
	if err != nil {
		r.fail(n, fmt.Sprintf("%s %q %v", what, s, err), "write a unit, for example 512MiB or 2GB")
		return 0, false
	}
	return b, true
}

// duration is whole seconds, or a duration with units. With unlimited, "none" is
// taken and stored as a negative duration.
func duration(key, path, doc string, dst *time.Duration, unlimited bool) field {
	typ, hint := "seconds, or a duration", "write seconds, or units, for example 90s or 1h30m"
	if unlimited {
		typ, hint = typ+", or none", hint+", or none for no limit"
	}
	return value(key, typ, path, doc, dst, func(r *reader, n ast.Node, what string) (time.Duration, bool) {
		var d time.Duration
		var err error
		shown := n.GetToken().Value
		if n.Type() == ast.IntegerType {
			v, ok := r.integer(n, what)
			if !ok {
				return 0, false
			}
			d, err = seconds(v)
		} else {
			s, ok := r.text(n, what)
			if !ok {
				return 0, false
			}
			if unlimited && s == "none" {
				return -1, true
			}
			d, err = parseDuration(s)
			shown = s
		}
		if err == nil && d <= 0 {
			err = fmt.Errorf("must be above zero")
		}
		if err != nil {
			r.fail(n, fmt.Sprintf("%s %q %v", what, shown, err), hint)
			return 0, false
		}
		return d, true
	})
}

// texts is a list of texts.
func texts(key, path, doc string, dst *[]string) field {
	return value(key, "list of text", path, doc, dst, readTexts(path))
}

func readTexts(path string) func(*reader, ast.Node, string) ([]string, bool) {
	return func(r *reader, n ast.Node, what string) ([]string, bool) {
		nodes, ok := r.list(n, what)
		out := []string{}
		for _, e := range nodes {
			if s, ok := r.text(e, "an element of "+what); ok {
				r.at[fmt.Sprintf("%s[%d]", path, len(out))] = position(e)
				out = append(out, s)
			}
		}
		return out, ok
	}
}

// ports is a list of ports.
func ports(key, path, doc string, dst *[]int) field {
	return value(key, "list of ports", path, doc, dst, func(r *reader, n ast.Node, what string) ([]int, bool) {
		nodes, ok := r.list(n, what)
		var out []int
		for _, e := range nodes {
			if v, ok := r.integer(e, "an element of "+what); ok {
				r.at[fmt.Sprintf("%s[%d]", path, len(out))] = position(e)
				out = append(out, int(v))
			}
		}
		return out, ok
	})
}

// pairs is a mapping from names to texts; numbers and truth values are taken as
// they are written.
func pairs(key, path, doc string, dst *map[string]string) field {
	return value(key, "mapping of text", path, doc, dst, func(r *reader, n ast.Node, what string) (map[string]string, bool) {
		m, ok := r.mapping(n, what)
		if !ok {
			return nil, false
		}
		out := map[string]string{}
		for _, v := range m.Values {
			name := keyText(v.Key)
			if isNull(v.Value) {
				r.fail(v.Value, fmt.Sprintf("%s.%s has no value", what, name), `write "" for an empty one`)
				continue
			}
			if s, ok := r.scalar(v.Value, what+"."+name); ok {
				r.at[path+"."+name] = position(v.Key)
				out[name] = s
			}
		}
		return out, true
	})
}

// section is a mapping with fields of its own.
func section(key, doc string, sub ...field) field {
	return field{key: key, typ: "mapping", doc: doc, sub: sub, read: func(r *reader, _, n ast.Node) {
		if m, ok := r.mapping(n, key); ok {
			r.fields(m, key, sub)
		}
	}}
}

// items is a list of mappings. Short, when not nil, reads an element that is text.
func items[T any](key, path, doc string, dst *[]T, short func(r *reader, n ast.Node, s string) (T, bool), fields func(v *T, path string) []field) field {
	typ := "list of mappings"
	if short != nil {
		typ = "list of text or mappings"
	}
	f := value(key, typ, path, doc, dst, func(r *reader, n ast.Node, what string) ([]T, bool) {
		nodes, ok := r.list(n, what)
		out := []T{}
		for _, e := range nodes {
			var v T
			at := fmt.Sprintf("%s[%d]", path, len(out))
			if e.Type() == ast.StringType && short != nil {
				s, _ := r.text(e, what)
				short, ok := short(r, e, s)
				if !ok {
					continue
				}
				v = short
			} else {
				m, ok := r.mapping(e, "an element of "+what)
				if !ok {
					continue
				}
				r.fields(m, "an element of "+what, fields(&v, at))
			}
			r.at[at] = position(e)
			out = append(out, v)
		}
		return out, ok
	})
	f.sub = fields(new(T), "")
	return f
}

// named is a mapping from names to mappings.
func named[T any](key, path, doc string, dst *map[string]T, fields func(v *T, path string) []field) field {
	f := value(key, "mapping by name", path, doc, dst, func(r *reader, n ast.Node, what string) (map[string]T, bool) {
		m, ok := r.mapping(n, what)
		if !ok {
			return nil, false
		}
		out := map[string]T{}
		for _, kv := range m.Values {
			var v T
			name := keyText(kv.Key)
			at := path + "." + name
			inner, ok := r.mapping(kv.Value, what+"."+name)
			if !ok {
				continue
			}
			r.at[at] = position(kv.Key)
			r.fields(inner, what+"."+name, fields(&v, at))
			out[name] = v
		}
		return out, true
	})
	f.sub = fields(new(T), "")
	return f
}

// network is a word or a list of rules.
func network(key, path, doc string, dst *string) field {
	return value(key, "none, loopback, host, all, or a list of rules", path, doc, dst, readNetwork(path))
}

func readNetwork(path string) func(*reader, ast.Node, string) (string, bool) {
	return func(r *reader, n ast.Node, what string) (string, bool) {
		if n.Type() != ast.SequenceType {
			return r.text(n, what)
		}
		list, ok := readTexts(path)(r, n, what)
		for i, item := range list {
			if strings.Contains(item, ",") {
				r.fail(n.(*ast.SequenceNode).Values[i], fmt.Sprintf("%q holds a comma", item), "write one rule for each element")
				return "", false
			}
		}
		if ok && len(list) == 0 {
			r.fail(n, what+" is an empty list", "write none for no network")
			return "", false
		}
		return strings.Join(list, ","), ok
	}
}
