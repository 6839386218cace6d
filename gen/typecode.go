package gen

import (
	"go/types"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dave/jennifer/jen"
)

// typeCoder writes types the way the user did: aliases stay aliases. It is the
// only part of emission that knows go/types.
type typeCoder struct {
	// redefined holds the predeclared names that the package declares itself;
	// the runtime library has another name for what they usually mean.
	redefined map[string]bool
	filesVar  string // holds the content of files=
}

// code writes t.
func (c *typeCoder) code(t types.Type) *jen.Statement {
	switch t := t.(type) {
	case *types.Basic:
		if t.Kind() == types.UnsafePointer {
			return jen.Qual("unsafe", "Pointer")
		}
		return c.predeclared(t.Name())
	case *types.Alias:
		return c.named(t.Obj(), t.TypeArgs())
	case *types.Named:
		return c.named(t.Obj(), t.TypeArgs())
	case *types.Pointer:
		return jen.Op("*").Add(c.code(t.Elem()))
	case *types.Slice:
		return jen.Index().Add(c.code(t.Elem()))
	case *types.Array:
		return jen.Index(jen.Lit(int(t.Len()))).Add(c.code(t.Elem()))
	case *types.Map:
		return jen.Map(c.code(t.Key())).Add(c.code(t.Elem()))
	case *types.Chan:
		return c.channel(t)
	case *types.Struct:
		return jen.StructFunc(func(g *jen.Group) {
			for i := range t.NumFields() {
				f := g.Empty()
				if !t.Field(i).Embedded() {
					f = g.Id(t.Field(i).Name())
				}
				f.Add(c.code(t.Field(i).Type()))
				if tag := t.Tag(i); tag != "" {
					f.Lit(tag)
				}
			}
		})
	case *types.Signature:
		return jen.Func().Add(c.signature(t))
	case *types.Interface:
		return jen.InterfaceFunc(func(g *jen.Group) {
			for i := range t.NumExplicitMethods() {
				m := t.ExplicitMethod(i)
				g.Id(m.Name()).Add(c.signature(m.Signature()))
			}
			for i := range t.NumEmbeddeds() {
				g.Add(c.code(t.EmbeddedType(i)))
			}
		})
	case *types.Union:
		return jen.UnionFunc(func(g *jen.Group) {
			for i := range t.Len() {
				term := g.Empty()
				if t.Term(i).Tilde() {
					term = g.Op("~")
				}
				term.Add(c.code(t.Term(i).Type()))
			}
		})
	}
	panic("gen: no code for " + t.String())
}

// signature writes parameters and results without names.
func (c *typeCoder) signature(s *types.Signature) *jen.Statement {
	params := jen.ParamsFunc(func(g *jen.Group) {
		for i := range s.Params().Len() {
			t := s.Params().At(i).Type()
			if sl, ok := t.(*types.Slice); ok && s.Variadic() && i == s.Params().Len()-1 {
				g.Op("...").Add(c.code(sl.Elem()))
				continue
			}
			g.Add(c.code(t))
		}
	})
	switch s.Results().Len() {
	case 0:
		return params
	case 1:
		return params.Add(c.code(s.Results().At(0).Type()))
	}
	return params.ParamsFunc(func(g *jen.Group) {
		for i := range s.Results().Len() {
			g.Add(c.code(s.Results().At(i).Type()))
		}
	})
}

func (c *typeCoder) channel(t *types.Chan) *jen.Statement {
	elem := c.code(t.Elem())
	if e, ok := t.Elem().(*types.Chan); ok && e.Dir() == types.RecvOnly {
		elem = jen.Parens(elem)
	}
	switch t.Dir() {
	case types.SendOnly:
		return jen.Chan().Op("<-").Add(elem)
	case types.RecvOnly:
		return jen.Op("<-").Chan().Add(elem)
	}
	return jen.Chan().Add(elem)
}

func (c *typeCoder) named(obj *types.TypeName, args *types.TypeList) *jen.Statement {
	var s *jen.Statement
	if obj.Pkg() == nil {
		s = c.predeclared(obj.Name())
	} else {
		s = jen.Qual(obj.Pkg().Path(), obj.Name())
	}
	if args.Len() == 0 {
		return s
	}
	return s.TypesFunc(func(g *jen.Group) {
		for t := range args.Types() {
			g.Add(c.code(t))
		}
	})
}

// predeclared writes a predeclared type, by the runtime library's name for it
// when the package has taken the usual one.
func (c *typeCoder) predeclared(name string) *jen.Statement {
	if c.redefined[name] {
		return jen.Qual(sandboxfnPath, predeclaredName(name))
	}
	return jen.Id(name)
}

// truth writes the constant true.
func (c *typeCoder) truth() *jen.Statement {
	return c.predeclared("true")
}

// predeclaredName is the name under which sandboxfn exports a predeclared one.
func predeclaredName(name string) string { return "Predeclared" + upperFirst(name) }

func upperFirst(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(r)) + s[n:]
}

// spelled is t as people read it in a message or in the description of a
// parameter: foreign types with their package's name.
func spelled(t types.Type, own *types.Package) string {
	return types.TypeString(t, func(p *types.Package) string {
		if p == own {
			return ""
		}
		return p.Name()
	})
}

// spelledParam is the type of a parameter, which may be variadic.
func spelledParam(t types.Type, variadic bool, own *types.Package) string {
	if s, ok := t.(*types.Slice); ok && variadic {
		return "..." + spelled(s.Elem(), own)
	}
	return strings.TrimSpace(spelled(t, own))
}

// packagesOf calls visit with every package that code for t names.
func packagesOf(t types.Type, visit func(*types.Package)) {
	object := func(o *types.TypeName, args *types.TypeList) {
		if o.Pkg() != nil {
			visit(o.Pkg())
		}
		for a := range args.Types() {
			packagesOf(a, visit)
		}
	}
	switch t := t.(type) {
	case *types.Alias:
		object(t.Obj(), t.TypeArgs())
	case *types.Named:
		object(t.Obj(), t.TypeArgs())
	case interface{ Elem() types.Type }: // pointer, slice, array, map, channel
		if m, ok := t.(*types.Map); ok {
			packagesOf(m.Key(), visit)
		}
		packagesOf(t.Elem(), visit)
	case *types.Struct:
		for f := range t.Fields() {
			packagesOf(f.Type(), visit)
		}
	case *types.Signature:
		for v := range t.Params().Variables() {
			packagesOf(v.Type(), visit)
		}
		for v := range t.Results().Variables() {
			packagesOf(v.Type(), visit)
		}
	case *types.Interface:
		for m := range t.ExplicitMethods() {
			packagesOf(m.Type(), visit)
		}
		for e := range t.EmbeddedTypes() {
			packagesOf(e, visit)
		}
	case *types.Union:
		for term := range t.Terms() {
			packagesOf(term.Type(), visit)
		}
	}
}
