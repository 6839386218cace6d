package gen

import (
	"bytes"
	"fmt"
	"go/types"
	"slices"
	"strconv"
	"strings"

	"github.com/dave/jennifer/jen"
)

// emit writes the output of a package; nil when nothing is to be generated.
func emit(m *model) ([]byte, error) {
	if m.empty() && !m.bare {
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
	if m.constraint != nil {
		e.HeaderComment("//go:build " + m.constraint.String())
	}
	e.version()
	e.signatures()
	e.embedded()
	for _, fn := range m.functions {
		e.structures(fn)
		e.declaration(fn)
		e.wrapper(fn)
	}
	for _, c := range m.classes {
		e.classStructures(c)
		e.classDeclaration(c)
		for _, fn := range c.methods {
			e.structures(fn)
			e.declaration(fn)
			e.wrapper(fn)
			e.methodHandle(fn)
		}
	}
	e.init()
	var b bytes.Buffer
	if err := e.Render(&b); err != nil {
		// The text of the error holds the whole source; its first line says it.
		line, _, _ := strings.Cut(err.Error(), "\n")
		return nil, fmt.Errorf("generated code is not valid: %s", line)
	}
	src := bytes.Replace(b.Bytes(), []byte(header+"\n//go:build"), []byte(header+"\n\n//go:build"), 1) // as gofmt has it
	return groupImports(src), nil
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
//		_ func(*model, string) Label = (*model).predict
//	)
func (e *emitter) signatures() {
	coder := e.model.coder
	if len(e.model.functions) == 0 && !slices.ContainsFunc(e.model.classes, func(c *class) bool {
		return len(c.methods) > 0 || c.enter != nil || c.exit != nil
	}) {
		return
	}
	e.Comment("// A mismatch here means the source changed: run go generate.")
	e.Var().DefsFunc(func(g *jen.Group) {
		for _, fn := range e.model.functions {
			g.Id("_").Add(coder.code(fn.sig)).Op("=").Id(fn.name)
		}
		for _, c := range e.model.classes {
			method := func(name string, sig *types.Signature) {
				g.Id("_").Add(coder.code(methodType(c, sig, c.typ))).Op("=").Parens(jen.Op("*").Id(c.name)).Dot(name)
			}
			for _, h := range []*hook{c.enter, c.exit} {
				if h != nil {
					method(h.name, h.sig)
				}
			}
			for _, fn := range c.methods {
				method(fn.name, fn.sig)
			}
		}
	})
	e.Line()
}

// embedded writes the content of files=:
//
//	//go:embed all:data
//	var sandbox_files embed.FS
func (e *emitter) embedded() {
	if len(e.model.embeds) == 0 {
		return
	}
	for _, pattern := range e.model.embeds {
		if strings.ContainsAny(pattern, " \t") {
			pattern = strconv.Quote(pattern)
		}
		e.Comment("//go:embed " + pattern)
	}
	e.Var().Id(e.model.coder.filesVar).Qual("embed", "FS")
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
		wrapper := fn.wrapper
		if fn.class != nil {
			wrapper = fn.class.remote + "." + wrapper
		}
		e.Commentf("// %s holds the %s of [%s].", name, what, wrapper)
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
	fields := e.declFields(fn.full, fn.id, fn.schema)
	if len(fn.params) > 0 {
		fields = append(fields, jen.Line().Add(keyed("Params", jen.Index().Qual(sandboxfnPath, "Param").ValuesFunc(func(g *jen.Group) {
			for _, p := range fn.params {
				g.ValuesFunc(func(g *jen.Group) { // keyed: go vet complains about foreign structs without
					g.Add(keyed("Name", jen.Lit(p.label)))
					g.Add(keyed("Type", jen.Lit(p.text)))
					if p.in {
						g.Add(keyed("In", e.model.coder.truth()))
					}
					if p.out {
						g.Add(keyed("Out", e.model.coder.truth()))
					}
				})
			}
		}))))
	}
	if set := options(fn.own, e.model.coder); len(set) > 0 {
		fields = append(fields, jen.Line().Add(keyed("Options", jen.Qual(sandboxfnPath, "Options").Values(set...))))
	}
	if fn.checks != nil {
		fields = append(fields, jen.Line().Add(keyed("Validate", jen.Qual(validatePath, "Args").CallFunc(func(g *jen.Group) {
			for _, c := range fn.checks {
				g.Lit(c)
			}
		}))))
	}
	variable, declare := fn.handle, "Declare"
	if fn.class == nil {
		e.Commentf("// %s is the handle of [%s].", fn.handle, fn.wrapper)
	} else {
		variable, declare = fn.variable, "DeclareMethod"
	}
	args := []jen.Code{}
	if fn.class != nil {
		args = append(args, jen.Id(fn.class.variable))
	}
	switch {
	case fn.stream != notLive && fn.class != nil:
		declare = "DeclareStreamMethod"
	case fn.stream != notLive:
		declare = "DeclareStream"
	case fn.batch != nil && fn.class != nil:
		declare = "DeclareBatchMethod"
	case fn.batch != nil:
		declare = "DeclareBatch"
	}
	e.Var().Id(variable).Op("=").Qual(sandboxfnPath, declare).Types(e.argument(fn), e.result(fn)).
		Call(append(args, literal("Decl", fields))...)
	e.Line()
}

// keyed writes a field of a literal.
func keyed(name string, value *jen.Statement) *jen.Statement { return jen.Id(name).Op(":").Add(value) }

// literal writes a struct of the runtime library over several lines.
func literal(name string, fields []jen.Code) *jen.Statement {
	return jen.Qual(sandboxfnPath, name).Custom(jen.Options{Open: "{", Separator: ",", Close: ",\n}"}, fields...)
}

// declFields writes how a function or class is known.
func (e *emitter) declFields(name, id, schema string) []jen.Code {
	fields := []jen.Code{jen.Line().Add(keyed("Package", jen.Lit(e.model.path))), keyed("Name", jen.Lit(name))}
	if id != "" {
		fields = append(fields, keyed("ID", jen.Lit(id)))
	}
	return append(fields, keyed("Schema", jen.Lit(schema)))
}

// handleType writes the type of a handle.
func (e *emitter) handleType(fn *function) *jen.Statement {
	name := "Func"
	if fn.stream != notLive {
		name = "StreamFunc"
	}
	return jen.Qual(sandboxfnPath, name).Types(e.argument(fn), e.result(fn))
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

// result writes the type of a call's result, of a stream that of its items.
func (e *emitter) result(fn *function) *jen.Statement {
	if fn.stream != notLive {
		return e.model.coder.code(fn.elem)
	}
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
	e.Func().
		Do(func(s *jen.Statement) {
			if fn.class != nil {
				s.Params(jen.Id(fn.class.self).Op("*").Id(fn.class.remote))
			}
		}).
		Id(fn.wrapper).
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
			switch {
			case fn.stream != notLive:
				s.Add(e.stream(fn))
				return
			case len(fn.results) == 0:
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

// stream writes the type of what a streaming wrapper returns.
func (e *emitter) stream(fn *function) *jen.Statement {
	return jen.Qual("iter", "Seq2").Types(e.model.coder.code(fn.elem), e.model.coder.predeclared("error"))
}

// callHandle writes the body of a wrapper. A result struct is taken apart, and
// the result of a function that has none is dropped:
//
//	r, err := DescribeFunc.Call(ctx, img)
//	return r.Width, r.Height, err
func (e *emitter) callHandle(g *jen.Group, fn *function) {
	handle := jen.Id(fn.handle)
	if fn.class != nil {
		handle = jen.Id(fn.class.self).Dot(fn.handle).Call()
	}
	if fn.stream != notLive {
		g.Return(handle.Dot("Stream").Call(jen.Id(fn.ctx), e.arguments(fn)))
		return
	}
	call := handle.Dot("Call").Call(jen.Id(fn.ctx), e.arguments(fn))
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
	if len(fn.doc) == 0 {
		e.Commentf("// %s runs %s in a sandbox.", fn.wrapper, fn.full)
		return
	}
	e.carried(fn.doc, fn.name, fn.wrapper)
	e.Comment("//")
	e.Commentf("// It runs %s in a sandbox.", fn.full)
}

// carried writes the user's comment with the leading name replaced.
func (e *emitter) carried(lines []string, name, by string) {
	if rest, ok := strings.CutPrefix(lines[0], name); ok && (rest == "" || rest[0] == ' ' || rest[0] == '\t') {
		lines = append([]string{by + rest}, lines[1:]...)
	}
	for _, l := range lines {
		e.Comment(commentLine(l))
	}
}

// commentLine makes a line of a comment from a line of text.
func commentLine(l string) string {
	switch {
	case l == "":
		return "//"
	case l[0] == '\t':
		return "//" + l
	}
	return "// " + l
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
		for _, c := range e.model.classes {
			e.bindClass(g, c)
			for _, fn := range c.methods {
				e.binding(g, fn)
			}
		}
		if !e.model.variant {
			g.Qual(sandboxfnPath, "Takeover").Call(jen.Lit(e.model.takeover))
		}
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
	failure := e.model.coder.predeclared("error")
	argument, result := e.argument(fn), e.result(fn)
	direct := len(fn.results) == 1 && fn.hasErr
	bind, suffix := "Bind", ""
	switch {
	case fn.stream != notLive:
		bind, result = "BindStream", e.stream(fn)
		direct = direct && fn.stream == liveSeq2
	case fn.batch != nil:
		bind, argument = "BindBatch", jen.Index().Add(argument)
		if fn.batch.hasErrs {
			suffix, result = "Results", jen.Qual(sandboxfnPath, "Result").Types(result)
		}
		result = jen.Index().Add(result)
	}
	variable := fn.handle
	if fn.class != nil {
		bind, variable = bind+"Method", fn.variable
	}
	g.Qual(sandboxfnPath, bind+suffix).Call(jen.Id(variable), jen.Func().
		ParamsFunc(func(g *jen.Group) {
			g.Id(fn.bindCtx).Qual("context", "Context")
			if fn.class != nil {
				g.Id(fn.bindSelf).Op("*").Id(fn.class.name)
			}
			g.Id(fn.bindArgs).Add(argument)
		}).
		Do(func(s *jen.Statement) {
			if direct {
				s.Params(result, failure)
				return
			}
			s.Params(jen.Id(fn.bindResult).Add(result), jen.Id(fn.bindErr).Add(failure))
		}).
		BlockFunc(func(g *jen.Group) {
			call := e.userCall(fn)
			switch {
			case direct:
				g.Return(call)
			case fn.stream == liveSeq:
				e.pairs(g, fn, call)
			default:
				e.assignResults(g, fn, call)
				g.Return()
			}
		}))
}

// pairs writes the call of a function that returns iter.Seq, whose items get an
// error each:
//
//	s, err := tail(ctx, a)
//	return sandboxfn.Pairs(s), err
func (e *emitter) pairs(g *jen.Group, fn *function, call *jen.Statement) {
	if fn.hasErr {
		g.List(jen.Id(fn.bindSeq), jen.Id(fn.bindErr)).Op(":=").Add(call)
		g.Return(jen.Qual(sandboxfnPath, "Pairs").Call(jen.Id(fn.bindSeq)), jen.Id(fn.bindErr))
		return
	}
	g.Id(fn.bindResult).Op("=").Qual(sandboxfnPath, "Pairs").Call(call)
	g.Return()
}

// userCall writes the call of the user's function.
func (e *emitter) userCall(fn *function) *jen.Statement {
	user := jen.Id(fn.name)
	if fn.class != nil {
		user = jen.Id(fn.bindSelf).Dot(fn.name)
	}
	return user.CallFunc(func(g *jen.Group) {
		if fn.hasCtx {
			g.Id(fn.bindCtx)
		}
		for i, p := range fn.params {
			arg := jen.Id(fn.bindArgs)
			if fn.argsType != "" {
				arg.Dot(p.field)
			}
			if fn.variadicElem(i) != nil || fn.batch != nil && fn.batch.variadic {
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
