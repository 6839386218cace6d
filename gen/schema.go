package gen

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"go/types"
	"reflect"
	"strings"

	"golang.org/x/tools/go/types/typeutil"
)

// codecRules is the version of the rules by which values become bytes. It is
// part of every schema, so that programs with different rules never talk.
const codecRules = "cbor 1"

// schema is a digest of what goes over the wire for fn: id, and the types of
// parameters and results down to basic kinds, with field names and tags.
// Names of types and parameters, comments and options do not enter it.
func schema(fn *function) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\nid %s\n", codecRules, fn.wireID())
	if fn.batch != nil {
		b.WriteString("batch\n")
	}
	for _, p := range fn.params {
		b.WriteString("in ")
		if p.in {
			b.WriteString("path ")
		}
		if p.out {
			b.WriteString("target ")
		}
		b.WriteString(canonicalLive(liveParam(p.typ), p.typ) + "\n")
	}
	for _, r := range fn.results {
		kind := liveResult(r.typ)
		if kind == liveSeq { // a stream has errors, whoever makes it
			kind = liveSeq2
		}
		b.WriteString("out " + canonicalLive(kind, r.typ) + "\n")
	}
	return digest(b.String())
}

// classSchema is schema for the parameters of a class.
func classSchema(c *class) string {
	return digest(fmt.Sprintf("%s\nclass %s\nin %s\n", codecRules, c.wireID(), canonical(c.paramsStruct())))
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// canonicalLive is the text of a parameter or a result, which may be live.
func canonicalLive(kind liveKind, t types.Type) string {
	switch kind {
	case notLive:
		return canonical(t)
	case liveSeq, liveSeq2:
		return string(kind) + "(" + canonical(elemOfSeq(t)) + ")"
	case liveFunc:
		sig := t.Underlying().(*types.Signature)
		return "func" + canonicalTuple(sig.Params()) + canonicalTuple(sig.Results())
	}
	return string(kind)
}

// canonicalTuple is the text of the parameters or results of a callback; the
// context stays where it is.
func canonicalTuple(vars *types.Tuple) string {
	var list []string
	for v := range vars.Variables() {
		if !isContext(v.Type()) {
			list = append(list, canonical(v.Type()))
		}
	}
	return "(" + strings.Join(list, ",") + ")"
}

// canonical is the text of a type.
func canonical(t types.Type) string {
	var c canonicalizer
	c.write(t)
	return c.text.String()
}

// canonicalizer writes one type; a named type that comes again is written as
// the number of its first place, so that recursion ends.
type canonicalizer struct {
	text  strings.Builder
	seen  typeutil.Map
	count int
}

func (c *canonicalizer) write(t types.Type) {
	if isError(t) {
		c.text.WriteString("error")
		return
	}
	if n, ok := types.Unalias(t).(*types.Named); ok {
		if isFile(n) {
			c.text.WriteString(n.Obj().Name())
			return
		}
		if how := marshaler(n); how != "" {
			fmt.Fprintf(&c.text, "%s(%s)", how, types.TypeString(n, nil))
			return
		}
		if at := c.seen.At(n); at != nil {
			fmt.Fprintf(&c.text, "#%d", at)
			return
		}
		c.count++
		c.seen.Set(n, c.count)
	}
	switch u := t.Underlying().(type) {
	case *types.Basic:
		c.text.WriteString(types.Typ[u.Kind()].Name()) // byte is uint8
	case *types.Pointer:
		c.text.WriteString("*")
		c.write(u.Elem())
	case *types.Slice:
		c.text.WriteString("[]")
		c.write(u.Elem())
	case *types.Array:
		fmt.Fprintf(&c.text, "[%d]", u.Len())
		c.write(u.Elem())
	case *types.Map:
		c.text.WriteString("map[")
		c.write(u.Key())
		c.text.WriteString("]")
		c.write(u.Elem())
	case *types.Struct:
		c.text.WriteString("struct{")
		for i := range u.NumFields() {
			c.field(u.Field(i), reflect.StructTag(u.Tag(i)))
		}
		c.text.WriteString("}")
	default:
		c.text.WriteString("?") // does not travel: never part of a schema that is used
	}
}

func (c *canonicalizer) field(f *types.Var, tags reflect.StructTag) {
	if f.Name() == "_" || sandboxSkips(tags) {
		return
	}
	fmt.Fprintf(&c.text, "%q", wireName(f, tags))
	c.text.WriteString(" ")
	for _, it := range sandboxItemsOf(tags) {
		if it.key == "file" || it.key == "dir" || it.key == "out" {
			c.text.WriteString(it.key + " ")
		}
	}
	c.write(f.Type())
	c.text.WriteString(";")
}
