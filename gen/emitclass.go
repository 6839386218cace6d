package gen

import (
	"go/types"
	"strconv"

	"github.com/dave/jennifer/jen"
)

// classStructures writes the parameters of a class:
//
//	type ModelParams struct {
//		Name string `validate:"required"`
//	}
func (e *emitter) classStructures(c *class) {
	e.Commentf("// %s are the parameters of [%s].", c.params, c.newName)
	e.Type().Id(c.params).StructFunc(func(g *jen.Group) {
		for _, f := range c.parameters() {
			for _, l := range f.doc {
				g.Comment(commentLine(l))
			}
			field := g.Id(f.v.Name()).Add(e.model.coder.code(f.v.Type()))
			if f.tag != "" {
				field.Add(tagCode(f.tag))
			}
		}
	})
	e.Line()
}

// classDeclaration writes the class, its remote handle and what makes one:
//
//	var ModelClass = sandboxfn.DeclareClass[ModelParams](sandboxfn.ClassDecl{…})
//
//	type Model struct{ sandboxfn.Object }
//
//	func NewModel(p ModelParams, opts *sandboxfn.Options) *Model {
//		return &Model{sandboxfn.NewObject(ModelClass, p, opts)}
//	}
func (e *emitter) classDeclaration(c *class) {
	fields := e.declFields(c.name, c.id, c.schema)
	if set := options(c.options, e.model.coder); len(set) > 0 {
		fields = append(fields, jen.Line().Add(keyed("Options", jen.Qual(sandboxfnPath, "Options").Values(set...))))
	}
	if c.validate {
		fields = append(fields, jen.Line().Add(keyed("Validate", jen.Qual(validatePath, "Args").Call(jen.Lit("params"), jen.Lit("")))))
	}
	e.Commentf("// %s is the class of [%s].", c.variable, c.remote)
	e.Var().Id(c.variable).Op("=").Qual(sandboxfnPath, "DeclareClass").Types(jen.Id(c.params)).Call(literal("ClassDecl", fields))
	e.Line()

	if len(c.doc) == 0 {
		e.Commentf("// %s is the handle of %s in a sandbox.", c.remote, c.name)
	} else {
		e.carried(c.doc, c.name, c.remote)
		e.Comment("//")
		e.Commentf("// It is the handle of %s in a sandbox.", c.name)
	}
	e.Type().Id(c.remote).Struct(jen.Qual(sandboxfnPath, "Object"))
	e.Line()

	e.Commentf("// %s returns a handle with the parameters %s. What %s sets replaces what the directives say.", c.newName, c.bindParams, c.bindOpts)
	p, opts := jen.Id(c.bindParams), jen.Id(c.bindOpts)
	e.Func().Id(c.newName).
		Params(p.Clone().Id(c.params), opts.Clone().Op("*").Qual(sandboxfnPath, "Options")).
		Op("*").Id(c.remote).
		Block(jen.Return(jen.Op("&").Id(c.remote).Values(
			jen.Qual(sandboxfnPath, "NewObject").Call(jen.Id(c.variable), p, opts),
		)))
	e.Line()
}

// methodHandle writes the handle of a method:
//
//	func (m *Model) PredictFunc() sandboxfn.Func[string, Label] {
//		return sandbox_modelPredict.Of(m.Object)
//	}
func (e *emitter) methodHandle(fn *function) {
	e.Commentf("// %s is the handle of [%s.%s].", fn.handle, fn.class.remote, fn.wrapper)
	e.Func().Params(jen.Id(fn.class.self).Op("*").Id(fn.class.remote)).Id(fn.handle).Params().Add(e.handleType(fn)).
		Block(jen.Return(jen.Id(fn.variable).Dot("Of").Call(jen.Id(fn.class.self).Dot("Object"))))
	e.Line()
}

// bindClass joins class and type:
//
//	sandboxfn.BindClass(ModelClass,
//		func(p ModelParams) *model { return &model{Name: p.Name} },
//		func(ctx context.Context, m *model) error { return m.load(ctx) },
//		nil,
//	)
func (e *emitter) bindClass(g *jen.Group, c *class) {
	g.Qual(sandboxfnPath, "BindClass").Custom(jen.Options{Open: "(", Separator: ",", Close: ",\n)"},
		jen.Id(c.variable),
		jen.Line().Func().Params(jen.Id(c.bindParams).Id(c.params)).Op("*").Id(c.name).
			Block(jen.Return(jen.Op("&").Id(c.name).Add(e.construct(c, c.fields)))),
		jen.Line().Add(e.hook(c, c.enter)),
		jen.Line().Add(e.hook(c, c.exit)),
	)
}

// construct writes the fields of a struct that come from the parameters.
func (e *emitter) construct(c *class, fields []classField) *jen.Statement {
	return jen.ValuesFunc(func(g *jen.Group) {
		for _, f := range fields {
			if f.inner == nil {
				g.Id(f.v.Name()).Op(":").Id(c.bindParams).Dot(f.v.Name())
				continue
			}
			field := g.Id(f.v.Name()).Op(":")
			t := f.v.Type()
			if p, ok := t.(*types.Pointer); ok {
				field.Op("&")
				t = p.Elem()
			}
			field.Add(e.model.coder.code(t)).Add(e.construct(c, f.inner))
		}
	})
}

// hook writes the call of an enter or exit method, nil when there is none.
func (e *emitter) hook(c *class, h *hook) *jen.Statement {
	if h == nil && !e.model.coder.redefined["nil"] {
		return jen.Nil()
	}
	failure := e.model.coder.predeclared("error")
	named := h == nil || !h.hasErr
	f := jen.Func().Params(jen.Id(c.bindCtx).Qual("context", "Context"), jen.Id(c.bindSelf).Op("*").Id(c.name))
	if named { // without a name for nil
		f.Params(jen.Id("_").Add(failure))
	} else {
		f.Add(failure)
	}
	return f.BlockFunc(func(g *jen.Group) {
		if h == nil {
			g.Return()
			return
		}
		call := jen.Id(c.bindSelf).Dot(h.name).CallFunc(func(g *jen.Group) {
			if h.hasCtx {
				g.Id(c.bindCtx)
			}
		})
		if !named {
			g.Return(call)
			return
		}
		g.Add(call)
		g.Return()
	})
}

// methodType is the type of a method with its receiver as first parameter.
func methodType(c *class, sig *types.Signature, obj types.Type) *types.Signature {
	params := []*types.Var{types.NewParam(c.pos, nil, "", types.NewPointer(obj))}
	for v := range sig.Params().Variables() {
		params = append(params, v)
	}
	return types.NewSignatureType(nil, nil, nil, types.NewTuple(params...), sig.Results(), sig.Variadic())
}

// tagCode writes a struct tag as people do.
func tagCode(tag string) *jen.Statement {
	if strconv.CanBackquote(tag) {
		return jen.Id("`" + tag + "`")
	}
	return jen.Lit(tag)
}
