package gen

import (
	"cmp"
	"fmt"
	"go/types"
	"strings"
)

// liveKind says how a value goes on during a call instead of being sent.
type liveKind string

const (
	notLive    liveKind = ""
	liveFunc   liveKind = "func"       // a callback that runs in the caller
	liveSeq    liveKind = "seq"        // iter.Seq[T]
	liveSeq2   liveKind = "seq2"       // iter.Seq2[T, error]
	liveReader liveKind = "reader"     // io.Reader
	liveWriter liveKind = "writer"     // io.Writer
	liveCloser liveKind = "readcloser" // io.ReadCloser, as a result
)

// liveParam tells what kind of live parameter t makes.
func liveParam(t types.Type) liveKind {
	switch {
	case isNamed(t, "iter", "Seq"):
		return liveSeq
	case isNamed(t, "iter", "Seq2"):
		return liveSeq2
	case isNamed(t, "io", "Reader"):
		return liveReader
	case isNamed(t, "io", "Writer"):
		return liveWriter
	}
	if _, ok := t.Underlying().(*types.Signature); ok {
		return liveFunc
	}
	return notLive
}

// liveResult is liveParam for results.
func liveResult(t types.Type) liveKind {
	switch {
	case isNamed(t, "iter", "Seq"):
		return liveSeq
	case isNamed(t, "iter", "Seq2"):
		return liveSeq2
	case isNamed(t, "io", "ReadCloser"):
		return liveCloser
	}
	return notLive
}

// elemOfSeq is T of iter.Seq[T] and iter.Seq2[T, error].
func elemOfSeq(t types.Type) types.Type {
	return types.Unalias(t).(*types.Named).TypeArgs().At(0)
}

// live checks a live parameter or result.
func (c *valueCheck) live(kind liveKind) {
	switch kind {
	case liveSeq2:
		if !isError(types.Unalias(c.value.typ).(*types.Named).TypeArgs().At(1)) {
			c.fault("G021", fmt.Sprintf("%s has type %s, which can't be sent; use iter.Seq2[T, error], or iter.Seq of a struct", c.subject, c.value.text))
			return
		}
		fallthrough
	case liveSeq:
		t := c.traveller(c.subject, c.root)
		t.inside = true
		t.walk(elemOfSeq(c.value.typ), c.root+"[]")
	case liveFunc:
		c.callback(c.value.typ.Underlying().(*types.Signature))
	}
}

// callback checks that what a callback takes and gives travels.
func (c *valueCheck) callback(sig *types.Signature) {
	callback := strings.Replace(c.subject, "parameter", "callback", 1)
	if isYield(sig) {
		c.fault("G021", fmt.Sprintf("%s has type %s, which can't be sent; %s", c.subject, c.value.text, c.a.seqHint(sig)))
		return
	}
	for i := range sig.Params().Len() {
		p := sig.Params().At(i)
		if isContext(p.Type()) {
			if i > 0 {
				c.fault("G024", fmt.Sprintf("context.Context must be the first parameter of %s", callback))
			}
			continue
		}
		c.part(p.Type(), fmt.Sprintf("parameter %s of %s", cmp.Or(p.Name(), fmt.Sprint(i+1)), callback), cmp.Or(p.Name(), "argument"))
	}
	for i := range sig.Results().Len() {
		r := sig.Results().At(i)
		if isError(r.Type()) {
			if i != sig.Results().Len()-1 {
				c.fault("G025", fmt.Sprintf("error must be the last result of %s", callback))
			}
			continue
		}
		c.part(r.Type(), fmt.Sprintf("result %d of %s", i+1, callback), "result")
	}
}

// part checks a parameter or a result of a callback, which is data.
func (c *valueCheck) part(t types.Type, subject, root string) {
	walk := c.traveller(subject, root)
	walk.inside = true
	walk.walk(t, "")
}

// seqHint says what to write in place of a sequence that goes by another name.
func (a *analysis) seqHint(sig *types.Signature) string {
	yield := sig.Params().At(0).Type().Underlying().(*types.Signature).Params()
	switch {
	case yield.Len() == 1:
		return "write iter.Seq[" + spelled(yield.At(0).Type(), a.checked.pkg) + "] itself"
	case yield.Len() == 2 && isError(yield.At(1).Type()):
		return "write iter.Seq2[" + spelled(yield.At(0).Type(), a.checked.pkg) + ", error] itself"
	}
	return "write iter.Seq[T] or iter.Seq2[T, error] itself"
}

// isYield reports whether a function is a sequence by its form.
func isYield(sig *types.Signature) bool {
	if sig.Params().Len() != 1 || sig.Results().Len() != 0 {
		return false
	}
	yield, ok := sig.Params().At(0).Type().Underlying().(*types.Signature)
	if !ok || yield.Results().Len() != 1 {
		return false
	}
	b, ok := yield.Results().At(0).Type().Underlying().(*types.Basic)
	return ok && b.Kind() == types.Bool && yield.Params().Len() <= 2
}

// liveResults finds the live result of fn, which must be the only one.
func (a *analysis) liveResults(fn *function) {
	for i := range fn.results {
		r := &fn.results[i]
		kind := liveResult(r.typ)
		switch {
		case kind == notLive:
		case len(fn.results) > 1:
			a.faults.add(r.pos, r.end, "G021", "result %d of %s has type %s, which can only be returned alone or with an error", i+1, fn.full, r.text)
		case kind == liveSeq, kind == liveSeq2:
			fn.stream, fn.elem = kind, elemOfSeq(r.typ)
		}
	}
}
