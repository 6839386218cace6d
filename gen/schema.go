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
	for _, p := range fn.params {
		b.WriteString("in " + canonical(p.typ) + "\n")
	}
	for _, r := range fn.results {
		b.WriteString("out " + canonical(r.typ) + "\n")
	}
	sum := sha256.Sum256([]byte(b.String()))
	return hex.EncodeToString(sum[:])
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
	c.write(f.Type())
	c.text.WriteString(";")
}
