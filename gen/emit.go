package gen

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/dave/jennifer/jen"
)

// emit writes the output of a package; nil when nothing is to be generated.
func emit(m *model) ([]byte, error) {
	if len(m.functions) == 0 {
		return nil, nil
	}
	e := &emitter{File: jen.NewFilePathName(m.path, m.name), model: m}
	for path, name := range m.names {
		if name == m.real[path] {
			e.ImportName(path, name)
		} else {
			e.ImportAlias(path, name)
		}
	}
	e.HeaderComment(header)
	e.version()
	e.signatures()
	for _, fn := range m.functions {
		e.structures(fn)
		e.declaration(fn)
		e.wrapper(fn)
	}
	e.init()
	var b bytes.Buffer
	if err := e.Render(&b); err != nil {
		// The text of the error holds the whole source; its first line says it.
		line, _, _ := strings.Cut(err.Error(), "\n")
		return nil, fmt.Errorf("generated code is not valid: %s", line)
	}
	return groupImports(b.Bytes()), nil
}

// emitter writes one file. Every method writes one kind of declaration.
type emitter struct {
	*jen.File
	model *model
}

// version writes
//
//	const _ = sandboxfn.Generated1
func (e *emitter) version() {
	e.Comment("// Undefined here means sandboxgen and the sandboxfn module differ: update both, then run go generate.")
	e.Const().Id("_").Op("=").Qual(sandboxfnPath, "Generated1")
	e.Line()
}

// signatures writes
//
//	var (
//		_ func(context.Context, []byte, int) ([]Label, error) = describe
//	)
func (e *emitter) signatures() {
	e.Comment("// A mismatch here means the source changed: run go generate.")
	e.Var().DefsFunc(func(g *jen.Group) {
		for _, fn := range e.model.functions {
			g.Id("_").Add(e.model.coder.code(fn.sig)).Op("=").Id(fn.name)
		}
	})
	e.Line()
}

// structures writes the types for several arguments or results:
//
//	type DescribeArgs struct {
//		Img []byte
//		Max int
//	}
func (e *emitter) structures(fn *function) {
	write := func(name, what string, values []value) {
		if name == "" {
			return
		}
		e.Commentf("// %s holds the %s of [%s].", name, what, fn.wrapper)
		e.Type().Id(name).StructFunc(func(g *jen.Group) {
			for _, v := range values {
				g.Id(v.field).Add(e.model.coder.code(v.typ))
			}
		})
		e.Line()
	}
	write(fn.argsType, "arguments", fn.params)
	write(fn.outType, "results", fn.results)
}

// declaration writes the handle:
//
//	var DescribeFunc = sandboxfn.Declare[DescribeArgs, []Label](sandboxfn.Decl{
//		Package: "example.com/media", Name: "describe", Schema: "5b1f…",
//		Params:  []sandboxfn.Param{{Name: "img", Type: "[]byte"}, {Name: "max", Type: "int"}},
//		Options: sandboxfn.Options{Timeout: time.Minute},
//	})
func (e *emitter) declaration(fn *function) {
	head := func(name string, value *jen.Statement) *jen.Statement { return jen.Id(name).Op(":").Add(value) }
	fields := []jen.Code{
		jen.Line().Add(head("Package", jen.Lit(e.model.path))),
		head("Name", jen.Lit(fn.name)),
	}
	if fn.id != "" {
		fields = append(fields, head("ID", jen.Lit(fn.id)))
	}
	fields = append(fields, head("Schema", jen.Lit(fn.schema)))
	if len(fn.params) > 0 {
		fields = append(fields, jen.Line().Add(head("Params", jen.Index().Qual(sandboxfnPath, "Param").ValuesFunc(func(g *jen.Group) {
			for _, p := range fn.params {
				// Keyed: go vet complains about foreign structs without.
				g.Values(head("Name", jen.Lit(p.label)), head("Type", jen.Lit(p.text)))
			}
		}))))
	}
	if set := options(fn.options, e.model.coder); len(set) > 0 {
		fields = append(fields, jen.Line().Add(head("Options", jen.Qual(sandboxfnPath, "Options").Values(set...))))
	}
	if fn.checks != nil {
		fields = append(fields, jen.Line().Add(head("Validate", jen.Qual(validatePath, "Args").CallFunc(func(g *jen.Group) {
			for _, c := range fn.checks {
				g.Lit(c)
			}
		}))))
	}
	e.Commentf("// %s is the handle of [%s].", fn.handle, fn.wrapper)
	e.Var().Id(fn.handle).Op("=").Qual(sandboxfnPath, "Declare").Types(e.argument(fn), e.result(fn)).Call(
		jen.Qual(sandboxfnPath, "Decl").Custom(jen.Options{Open: "{", Separator: ",", Close: ",\n}"}, fields...),
	)
	e.Line()
}

// argument writes the type of a call's argument.
func (e *emitter) argument(fn *function) *jen.Statement {
	switch len(fn.params) {
	case 0:
		return jen.Qual(sandboxfnPath, "None")
	case 1:
		return e.model.coder.code(fn.params[0].typ)
	}
	return jen.Id(fn.argsType)
}

// result writes the type of a call's result.
func (e *emitter) result(fn *function) *jen.Statement {
	switch len(fn.results) {
	case 0:
		return jen.Qual(sandboxfnPath, "None")
	case 1:
		return e.model.coder.code(fn.results[0].typ)
	}
	return jen.Id(fn.outType)
}

// wrapper writes the function a caller uses:
//
//	func Describe(ctx context.Context, img []byte, max int) ([]Label, error) {
//		return DescribeFunc.Call(ctx, DescribeArgs{img, max})
//	}
func (e *emitter) wrapper(fn *function) {
	e.doc(fn)
	coder := e.model.coder
	e.Func().Id(fn.wrapper).
		ParamsFunc(func(g *jen.Group) {
			g.Id(fn.ctx).Qual("context", "Context")
			for i, p := range fn.params {
				if elem := fn.variadicElem(i); elem != nil {
					g.Id(p.name).Op("...").Add(coder.code(elem))
					continue
				}
				g.Id(p.name).Add(coder.code(p.typ))
			}
		}).
		Do(func(s *jen.Statement) {
			if len(fn.results) == 0 {
				s.Add(coder.predeclared("error"))
				return
			}
			s.ParamsFunc(func(g *jen.Group) {
				for _, r := range fn.results {
					g.Add(coder.code(r.typ))
				}
				g.Add(coder.predeclared("error"))
			})
		}).
		BlockFunc(func(g *jen.Group) { e.callHandle(g, fn) })
	e.Line()
}

// callHandle writes the body of a wrapper. A result struct is taken apart, and
// the result of a function that has none is dropped:
//
//	r, err := DescribeFunc.Call(ctx, img)
//	return r.Width, r.Height, err
func (e *emitter) callHandle(g *jen.Group, fn *function) {
	call := jen.Id(fn.handle).Dot("Call").Call(jen.Id(fn.ctx), e.arguments(fn))
	switch len(fn.results) {
	case 0:
		g.List(jen.Id("_"), jen.Id(fn.err)).Op(":=").Add(call)
		g.Return(jen.Id(fn.err))
	case 1:
		g.Return(call)
	default:
		g.List(jen.Id(fn.result), jen.Id(fn.err)).Op(":=").Add(call)
		g.Return(jen.ListFunc(func(g *jen.Group) {
			for _, r := range fn.results {
				g.Id(fn.result).Dot(r.field)
			}
			g.Id(fn.err)
		}))
	}
}

// arguments writes the argument of a call: None, the only parameter, or the
// struct of all.
func (e *emitter) arguments(fn *function) *jen.Statement {
	switch len(fn.params) {
	case 0:
		return jen.Qual(sandboxfnPath, "None").Values()
	case 1:
		return jen.Id(fn.params[0].name)
	}
	return jen.Id(fn.argsType).ValuesFunc(func(g *jen.Group) {
		for _, p := range fn.params {
			g.Id(p.name)
		}
	})
}

// doc writes the comment of a wrapper: the user's, with the function's name
// replaced, and what the wrapper adds.
func (e *emitter) doc(fn *function) {
	lines := fn.doc
	if len(lines) == 0 {
		e.Commentf("// %s runs %s in a sandbox.", fn.wrapper, fn.name)
		return
	}
	if rest, ok := strings.CutPrefix(lines[0], fn.name); ok && (rest == "" || rest[0] == ' ' || rest[0] == '\t') {
		lines = append([]string{fn.wrapper + rest}, lines[1:]...)
	}
	for _, l := range lines {
		switch {
		case l == "":
			e.Comment("//")
		case l[0] == '\t':
			e.Comment("//" + l)
		default:
			e.Comment("// " + l)
		}
	}
	e.Comment("//")
	e.Commentf("// It runs %s in a sandbox.", fn.name)
}

// init writes
//
//	func init() {
//		sandboxfn.Errors("example.com/media", …)
//		sandboxfn.Bind(…)
//		sandboxfn.Takeover("example.com/media")
//	}
func (e *emitter) init() {
	e.Func().Id("init").Params().BlockFunc(func(g *jen.Group) {
		if len(e.model.errors) > 0 {
			g.Qual(sandboxfnPath, "Errors").Custom(jen.Options{Open: "(", Separator: ",", Close: ",\n)"}, e.errorList()...)
		}
		for _, fn := range e.model.functions {
			e.binding(g, fn)
		}
		g.Qual(sandboxfnPath, "Takeover").Call(jen.Lit(e.model.path))
	})
}

// errorList writes
//
//	sandboxfn.Sentinel("io.EOF", &io.EOF),
//	sandboxfn.ErrorType[*ParseError](),
func (e *emitter) errorList() []jen.Code {
	list := []jen.Code{jen.Lit(e.model.path)}
	for _, en := range e.model.errors {
		object := jen.Qual(en.obj.Pkg().Path(), en.obj.Name())
		switch {
		case en.name != "":
			list = append(list, jen.Line().Qual(sandboxfnPath, "Sentinel").Call(jen.Lit(en.name), jen.Op("&").Add(object)))
		case en.pointer:
			list = append(list, jen.Line().Qual(sandboxfnPath, "ErrorType").Types(jen.Op("*").Add(object)).Call())
		default:
			list = append(list, jen.Line().Qual(sandboxfnPath, "ErrorType").Types(object).Call())
		}
	}
	return list
}

// binding joins handle and function:
//
//	sandboxfn.Bind(DescribeFunc, func(ctx context.Context, a DescribeArgs) ([]Label, error) {
//		return describe(ctx, a.Img, a.Max)
//	})
func (e *emitter) binding(g *jen.Group, fn *function) {
	direct := len(fn.results) == 1 && fn.hasErr
	failure := e.model.coder.predeclared("error")
	g.Qual(sandboxfnPath, "Bind").Call(jen.Id(fn.handle), jen.Func().
		Params(jen.Id(fn.bindCtx).Qual("context", "Context"), jen.Id(fn.bindArgs).Add(e.argument(fn))).
		Do(func(s *jen.Statement) {
			if direct {
				s.Params(e.result(fn), failure)
				return
			}
			s.Params(jen.Id(fn.bindResult).Add(e.result(fn)), jen.Id(fn.bindErr).Add(failure))
		}).
		BlockFunc(func(g *jen.Group) {
			call := e.userCall(fn)
			if direct {
				g.Return(call)
				return
			}
			e.assignResults(g, fn, call)
			g.Return()
		}))
}

// userCall writes the call of the user's function.
func (e *emitter) userCall(fn *function) *jen.Statement {
	return jen.Id(fn.name).CallFunc(func(g *jen.Group) {
		if fn.hasCtx {
			g.Id(fn.bindCtx)
		}
		for i, p := range fn.params {
			arg := jen.Id(fn.bindArgs)
			if fn.argsType != "" {
				arg.Dot(p.field)
			}
			if fn.variadicElem(i) != nil {
				arg.Op("...")
			}
			g.Add(arg)
		}
	})
}

// assignResults writes the call with its results stored in r and err.
func (e *emitter) assignResults(g *jen.Group, fn *function, call *jen.Statement) {
	var targets []jen.Code
	for _, r := range fn.results {
		target := jen.Id(fn.bindResult)
		if fn.outType != "" {
			target.Dot(r.field)
		}
		targets = append(targets, target)
	}
	if fn.hasErr {
		targets = append(targets, jen.Id(fn.bindErr))
	}
	if len(targets) == 0 {
		g.Add(call)
		return
	}
	g.List(targets...).Op("=").Add(call)
}
