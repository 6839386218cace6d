package gen

import (
	"fmt"
	"go/token"
	"go/types"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-playground/validator/v10"
	"golang.org/x/tools/go/types/typeutil"

	"github.com/agent-sandbox/sandbox-go/gen/directive"
)

// checkRules decides whether a call of fn needs validation and reports rules
// that validator/v10 would not know, or would not apply, when the call is
// made. The library itself is asked; it has the last word at run time too.
func (a *analysis) checkRules(fn *function) {
	rules := make(map[string]string)
	for _, c := range fn.options.Checks {
		i := slices.IndexFunc(fn.params, func(p value) bool { return p.given == c.Param })
		if i < 0 {
			a.faults.add(c.ParamPos, c.ParamPos+token.Pos(len(c.Param)), "G016", "option check.%s: %s has no parameter %s%s",
				c.Param, fn.full, c.Param, parameterList(fn))
			continue
		}
		if !isValid(fn.params[i].typ) {
			continue
		}
		if liveParam(fn.params[i].typ) != notLive {
			a.faults.add(c.ParamPos, c.ParamPos+token.Pos(len(c.Param)), "G041", "option check.%s: rules do not apply to type %s", c.Param, fn.params[i].text)
			continue
		}
		for _, message := range ruleFaults(c.Rules, fn.params[i].typ, fn.params[i].text, nil) {
			a.faults.add(c.RulePos, c.End, "G041", "option check.%s: %s", c.Param, message)
		}
		rules[c.Param] = c.Rules
	}
	w := &ruleWalker{a: a}
	for _, p := range fn.params {
		if liveParam(p.typ) == notLive {
			w.walk(p.typ, spelled(p.typ, a.checked.pkg))
		}
	}
	if len(rules) == 0 && !w.found {
		return
	}
	fn.checks = []string{}
	for _, p := range fn.params {
		fn.checks = append(fn.checks, p.label, rules[p.given])
	}
}

// parameterList is the tail of a message that names what fn has.
func parameterList(fn *function) string {
	var names []string
	for _, p := range fn.params {
		if p.given != "" {
			names = append(names, p.given)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; it has " + strings.Join(names, ", ")
}

// ruleWalker looks for validate tags and Validate methods in what a type is
// made of.
type ruleWalker struct {
	a     *analysis
	seen  typeutil.Map
	depth int
	found bool
}

func (w *ruleWalker) walk(t types.Type, owner string) {
	if w.depth == maxDepth {
		return // does not travel, which is reported
	}
	w.depth++
	defer func() { w.depth-- }()
	if n, ok := types.Unalias(t).(*types.Named); ok {
		if w.seen.At(n) != nil {
			return
		}
		w.seen.Set(n, true)
		owner = spelled(t, w.a.checked.pkg)
		if validates(n) {
			w.found = true
		}
	}
	switch u := t.Underlying().(type) {
	case *types.Pointer:
		w.walk(u.Elem(), owner)
	case *types.Slice:
		w.walk(u.Elem(), owner)
	case *types.Array:
		w.walk(u.Elem(), owner)
	case *types.Map:
		w.walk(u.Key(), owner)
		w.walk(u.Elem(), owner)
	case *types.Struct:
		for i := range u.NumFields() {
			f := u.Field(i)
			if !f.Exported() && !promotes(f) {
				continue
			}
			w.field(u, f, u.Tag(i), owner)
			w.walk(f.Type(), owner+"."+f.Name())
		}
	}
}

// validates reports whether a type checks itself.
func validates(n *types.Named) bool {
	m := types.NewMethodSet(types.NewPointer(n)).Lookup(nil, "Validate")
	if m == nil {
		return false
	}
	sig, ok := m.Type().(*types.Signature)
	return ok && sig.Params().Len() == 0 && sig.Results().Len() == 1 && isError(sig.Results().At(0).Type())
}

// field checks the validate tag of one field.
func (w *ruleWalker) field(s *types.Struct, f *types.Var, tag, owner string) {
	keys, formed := tagKeys(tag)
	rules, ok := reflect.StructTag(tag).Lookup("validate")
	var faults []string
	switch {
	case !ok && !formed && strings.Contains(tag, "validate"):
		faults = []string{`it is not well formed; write validate:"…" without a space after the colon`}
	case !ok:
		for _, k := range keys {
			if k != "valid" && directive.Similar(k, "validate") {
				faults = []string{"the tag is spelled " + show(k) + "; write validate"}
			}
		}
		if faults == nil {
			return
		}
	case rules == "" || rules == "-":
		return
	case len(secretsOf(tag)) > 0 || strings.Contains(reflect.StructTag(tag).Get("sandbox"), "env="):
		faults = []string{"the field is filled in the sandbox, so the caller can't check it"}
	case sandboxSkips(reflect.StructTag(tag)):
		faults = []string{`the field is not sent (sandbox:"-"), so the worker can't check it`}
	default:
		w.found = true
		faults = ruleFaults(rules, f.Type(), spelled(f.Type(), w.a.checked.pkg), s)
	}
	for _, message := range faults {
		text := "validate tag of " + owner + "." + f.Name() + ": " + message
		if w.a.reasons[text] {
			continue
		}
		w.a.reasons[text] = true
		pos, end := w.a.tags.tagPos(f)
		w.a.faults.add2(pos, end, "G041", text)
	}
}

// library is the validator that is asked.
var library = sync.OnceValue(func() *validator.Validate { return validator.New() })

// everyType are rules that the library takes for any type.
var everyType = []string{
	"required", "omitempty", "omitnil", "omitzero", "isdefault", "eq", "ne", "validateFn", "structonly", "nostructlevel",
}

// fieldRules compare a field with others of its struct; the parameter names
// them: one, all of the words, or every other word.
var fieldRules = map[string]string{
	"eqfield": "one", "nefield": "one", "gtfield": "one", "gtefield": "one", "ltfield": "one", "ltefield": "one",
	"eqcsfield": "path", "necsfield": "path", "gtcsfield": "path", "gtecsfield": "path", "ltcsfield": "path", "ltecsfield": "path",
	"fieldcontains": "one", "fieldexcludes": "one", "postcode_iso3166_alpha2_field": "one",
	"required_if": "pairs", "required_unless": "pairs", "skip_unless": "pairs", "excluded_if": "pairs", "excluded_unless": "pairs",
	"required_with": "all", "required_with_all": "all", "required_without": "all", "required_without_all": "all",
	"excluded_with": "all", "excluded_with_all": "all", "excluded_without": "all", "excluded_without_all": "all",
}

// asks are rules that refuse a type by themselves; every other one reads its
// field as text and would silently fail on anything but strings.
var asks = []string{
	"len", "min", "max", "lt", "lte", "gt", "gte", "oneof", "noneof", "unique", "latitude", "longitude", "port", "json",
	"iso3166_1_alpha_numeric", "iso3166_1_alpha_numeric_eu", "iso4217_numeric", "luhn_checksum",
}

// numbersToo are rules for text that also hold for numbers.
var numbersToo = []string{"numeric", "number"}

// ruleFaults says what is wrong with the rules of a validate tag for type t,
// which is spelled text; siblings is the struct it is in, nil for a parameter.
func ruleFaults(tag string, t types.Type, text string, siblings *types.Struct) []string {
	var faults []string
	var outer []types.Type // types to come back to at endkeys
	var outerText []string
	for rule := range strings.SplitSeq(tag, ",") {
		switch rule {
		case "dive":
			elem := elemOf(t)
			if elem == nil {
				return append(faults, fmt.Sprintf("rule dive does not apply to type %s", text))
			}
			if m, ok := deref(t).Underlying().(*types.Map); ok {
				outer, outerText = append(outer, m.Key()), append(outerText, spelled(m.Key(), nil))
			} else {
				outer, outerText = append(outer, nil), append(outerText, "")
			}
			t, text = elem, types.TypeString(elem, nameOnly)
		case "keys":
			n := len(outer)
			if n == 0 || outer[n-1] == nil {
				return append(faults, "rule keys must follow dive on a map")
			}
			outer[n-1], t = t, outer[n-1]
			outerText[n-1], text = text, outerText[n-1]
		case "endkeys":
			n := len(outer)
			if n == 0 || outer[n-1] == nil {
				return append(faults, "rule endkeys without keys")
			}
			t, text = outer[n-1], outerText[n-1]
			outer[n-1] = nil
		default:
			for alternative := range strings.SplitSeq(rule, "|") {
				if f := ruleFault(alternative, t, text, siblings); f != "" {
					faults = append(faults, f)
				}
			}
		}
	}
	return faults
}

func nameOnly(p *types.Package) string { return p.Name() }

// deref removes pointers, as the library does.
func deref(t types.Type) types.Type {
	for {
		p, ok := t.Underlying().(*types.Pointer)
		if !ok {
			return t
		}
		t = p.Elem()
	}
}

// elemOf is what dive goes to, nil when there is nothing to dive into.
func elemOf(t types.Type) types.Type {
	switch u := deref(t).Underlying().(type) {
	case *types.Slice:
		return u.Elem()
	case *types.Array:
		return u.Elem()
	case *types.Map:
		return u.Elem()
	}
	return nil
}

// ruleFault checks one rule.
func ruleFault(rule string, t types.Type, text string, siblings *types.Struct) string {
	name, param, _ := strings.Cut(rule, "=")
	t = deref(t)
	if !knownRule(name) {
		if near := directive.Nearest(name, ruleNames); near != "" {
			return fmt.Sprintf("unknown rule %s; did you mean %s?", show(name), near)
		}
		return "unknown rule " + show(name)
	}
	if kind, ok := fieldRules[name]; ok {
		return siblingFault(name, kind, param, siblings)
	}
	unfit := fmt.Sprintf("rule %s does not apply to type %s", name, text)
	sample := sampleOf(t)
	switch {
	case slices.Contains(everyType, name):
		return ""
	case !sample.IsValid() || sample.Kind() == reflect.Struct && sample.Type() != reflect.TypeFor[time.Time]():
		return unfit
	case slices.Contains(asks, name):
	case sample.Kind() != reflect.String && !prints(t) &&
		!(slices.Contains(numbersToo, name) && isNumber(sample)) && !(name == "boolean" && sample.Kind() == reflect.Bool):
		return unfit
	}
	problem := ask(sample, rule)
	switch {
	case problem == "":
		return ""
	case strings.Contains(problem, "Bad field type"), strings.HasPrefix(problem, "reflect:"):
		return unfit
	case strings.Contains(problem, "strconv.") && isNamed(t, "time", "Duration"):
		return fmt.Sprintf("rule %s needs a duration, got %q", name, param)
	case strings.Contains(problem, "strconv."):
		return fmt.Sprintf("rule %s needs a number, got %q", name, param)
	}
	return fmt.Sprintf("rule %s: bad parameter %q", name, param)
}

// ask runs a rule on a value and returns what the library panics with.
func ask(sample reflect.Value, rule string) (problem string) {
	defer func() {
		if p := recover(); p != nil {
			problem = fmt.Sprint(p)
		}
	}()
	// Whether the value passes does not matter, only whether the rule runs.
	_ = library().Var(sample.Interface(), rule)
	return ""
}

// knownRule reports whether the library has a rule.
func knownRule(name string) bool {
	if name == "" || strings.ContainsAny(name, "|,") {
		return false
	}
	if slices.Contains(everyType, name) || fieldRules[name] != "" {
		return true
	}
	return !strings.HasPrefix(ask(reflect.ValueOf(""), name), "Undefined validation function")
}

// siblingFault checks the names of fields in the parameter of a rule.
func siblingFault(rule, kind, param string, s *types.Struct) string {
	if s == nil {
		return fmt.Sprintf("rule %s compares fields of a struct and can't stand on a parameter", rule)
	}
	words := strings.Fields(param)
	if len(words) == 0 {
		return fmt.Sprintf("rule %s needs the name of a field", rule)
	}
	if kind == "pairs" && len(words)%2 != 0 {
		return fmt.Sprintf("rule %s needs pairs of field and value, got %q", rule, param)
	}
	for i, w := range words {
		if kind == "pairs" && i%2 == 1 || kind == "path" {
			continue
		}
		first, _, _ := strings.Cut(w, ".")
		if !slices.ContainsFunc(slices.Collect(s.Fields()), func(f *types.Var) bool { return f.Name() == first }) {
			return fmt.Sprintf("rule %s names field %s, which is not there", rule, show(first))
		}
	}
	return ""
}

func isNumber(v reflect.Value) bool { return v.CanInt() || v.CanUint() || v.CanFloat() }

// prints reports whether t has a String method, which some rules read.
func prints(t types.Type) bool {
	m := types.NewMethodSet(types.NewPointer(t)).Lookup(nil, "String")
	return m != nil
}

// sampleOf is a zero value like those of t; the zero Value when the library
// would see nothing but an interface.
func sampleOf(t types.Type) reflect.Value {
	rt := reflectType(t, 0)
	if rt == nil {
		return reflect.Value{}
	}
	if rt.Kind() == reflect.Map {
		return reflect.MakeMap(rt)
	}
	return reflect.Zero(rt)
}

// reflectType builds the type that stands for t. Structs other than the time
// have no fields: rules see only that they are structs.
func reflectType(t types.Type, depth int) reflect.Type {
	if depth > 20 {
		return nil
	}
	if isNamed(t, "time", "Time") {
		return reflect.TypeFor[time.Time]()
	}
	if isNamed(t, "time", "Duration") {
		return reflect.TypeFor[time.Duration]()
	}
	elem := func(t types.Type) reflect.Type {
		if rt := reflectType(t, depth+1); rt != nil {
			return rt
		}
		return reflect.TypeFor[any]()
	}
	switch u := t.Underlying().(type) {
	case *types.Basic:
		return basicTypes[u.Kind()]
	case *types.Pointer:
		return reflect.PointerTo(elem(u.Elem()))
	case *types.Slice:
		return reflect.SliceOf(elem(u.Elem()))
	case *types.Array:
		return reflect.ArrayOf(int(min(u.Len(), 8)), elem(u.Elem()))
	case *types.Map:
		key := elem(u.Key())
		if !key.Comparable() {
			key = reflect.TypeFor[string]()
		}
		return reflect.MapOf(key, elem(u.Elem()))
	case *types.Struct:
		return reflect.TypeFor[struct{}]()
	}
	return nil
}

var basicTypes = map[types.BasicKind]reflect.Type{
	types.Bool: reflect.TypeFor[bool](), types.String: reflect.TypeFor[string](),
	types.Int: reflect.TypeFor[int](), types.Int8: reflect.TypeFor[int8](), types.Int16: reflect.TypeFor[int16](),
	types.Int32: reflect.TypeFor[int32](), types.Int64: reflect.TypeFor[int64](),
	types.Uint: reflect.TypeFor[uint](), types.Uint8: reflect.TypeFor[uint8](), types.Uint16: reflect.TypeFor[uint16](),
	types.Uint32: reflect.TypeFor[uint32](), types.Uint64: reflect.TypeFor[uint64](),
	types.Float32: reflect.TypeFor[float32](), types.Float64: reflect.TypeFor[float64](),
}
