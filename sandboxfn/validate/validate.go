// Package validate checks arguments by their validate tags, in the language of
// github.com/go-playground/validator, and asks types that have a method
// Validate() error. Generated code imports it when there is something to check,
// so that other programs do not link the validator.
//
// The errors it returns are made of [Failure] values; package sandboxfn turns
// them into its own FieldError.
package validate

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/go-playground/validator/v10"
)

// Failure is one rule that a value breaks.
type Failure struct {
	Path  string // "opts.Sizes[2]"
	Rule  string // name of the rule, or "Validate" for the type's own method
	Limit string // parameter of the rule; may be empty
	Text  string // "must be at least 1, is 0"
	Err   error  // what a Validate method returned; else nil
}

// Error has the form "max: must be at least 1, is 0 (min=1)".
func (f *Failure) Error() string {
	rule := f.Rule
	if f.Limit != "" {
		rule += "=" + f.Limit
	}
	return fmt.Sprintf("%s: %s (%s)", f.Path, f.Text, rule)
}

// Unwrap returns what a Validate method returned.
func (f *Failure) Unwrap() error { return f.Err }

// BrokenRule takes the failure apart. Package sandboxfn calls it.
func (f *Failure) BrokenRule() (path, rule, limit, text string) {
	return f.Path, f.Rule, f.Limit, f.Text
}

// engine is made at first use: it is not cheap, and many programs never get to
// a call.
var engine = sync.OnceValue(func() *validator.Validate {
	return validator.New(validator.WithRequiredStructEnabled())
})

// Args returns a function that checks the arguments of a call: pairs of a
// parameter's name and its rules, in order. Empty rules mean that only the tags
// and methods of the parameter's type count. With one pair the argument is the
// parameter itself, else a struct with a field for each.
//
// The function returns nil, or all failures joined, and is safe for concurrent
// use.
func Args(nameRulePairs ...string) func(any) error {
	names, rules := split(nameRulePairs)
	if len(names) == 1 {
		return func(arg any) error { return errors.Join(check(names[0], rules[0], reflect.ValueOf(arg))...) }
	}
	return func(arg any) error {
		v := reflect.ValueOf(arg)
		if v.Kind() != reflect.Struct || v.NumField() != len(names) {
			return fmt.Errorf("%T does not have a field for each of %d parameters", arg, len(names))
		}
		var failures []error
		for i, name := range names {
			failures = append(failures, check(name, rules[i], v.Field(i))...)
		}
		return errors.Join(failures...)
	}
}

func split(pairs []string) (names, rules []string) {
	for i := 0; i+1 < len(pairs); i += 2 {
		names = append(names, pairs[i])
		rules = append(rules, pairs[i+1])
	}
	return names, rules
}

// check checks one parameter: tags first, then methods, outermost last.
func check(name, rules string, v reflect.Value) []error {
	if !v.IsValid() || endless(v) {
		return nil // a value that contains itself can't be sent, which is said elsewhere
	}
	failures := byTags(name, rules, v)
	return append(failures, byMethods(name, v, 0)...)
}

// byTags asks the validator.
func byTags(name, rules string, v reflect.Value) (failures []error) {
	defer func() {
		if r := recover(); r != nil { // a rule that does not exist, or not for this type
			failures = []error{&Failure{Path: name, Rule: rules, Text: fmt.Sprintf("can't be checked: %v", r)}}
		}
	}()
	err := ask(rules, v)
	var broken validator.ValidationErrors
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &broken):
		return []error{&Failure{Path: name, Rule: rules, Text: "can't be checked: " + err.Error()}}
	}
	for _, b := range broken {
		failures = append(failures, &Failure{Path: place(name, v.Type(), b), Rule: b.Tag(), Limit: b.Param(), Text: text(b)})
	}
	return failures
}

func ask(rules string, v reflect.Value) error {
	base, levels := elements(v.Type())
	if tagged := base.Kind() == reflect.Struct && base != reflect.TypeFor[time.Time](); tagged && !strings.Contains(rules, "dive") {
		// At the level of a parameter there is no tag that could say dive.
		if levels == 0 && rules == "" {
			if v.Kind() == reflect.Pointer && v.IsNil() {
				return nil
			}
			return engine().Struct(v.Interface())
		}
		rules = strings.TrimPrefix(rules+strings.Repeat(",dive", levels), ",")
	}
	if rules == "" {
		return nil
	}
	return engine().Var(v.Interface(), rules)
}

// elements is the type at the bottom of slices, maps and pointers, and how many
// slices and maps are above it.
func elements(t reflect.Type) (base reflect.Type, levels int) {
	for range maxDepth {
		switch t.Kind() {
		case reflect.Slice, reflect.Array, reflect.Map:
			levels++
		case reflect.Pointer:
		default:
			return t, levels
		}
		t = t.Elem()
	}
	return t, levels // a type whose elements are of that type
}

// place is the path of a failure, under the parameter's name.
func place(name string, t reflect.Type, b validator.FieldError) string {
	ns := b.StructNamespace()
	if base, levels := elements(t); levels == 0 {
		ns = strings.TrimPrefix(ns, base.Name()+".")
	}
	switch {
	case ns == "":
		return name
	case strings.HasPrefix(ns, "["):
		return name + ns
	}
	return name + "." + ns
}

// Validator is implemented by types with rules that tags cannot say.
type Validator interface{ Validate() error }

// maxDepth is the depth at which a value counts as one that contains itself.
const maxDepth = 1000

// byMethods asks every value inside v that has a Validate method.
func byMethods(path string, v reflect.Value, depth int) (failures []error) {
	if depth > maxDepth || !asks(v.Type()) {
		return nil
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return byMethods(path, v.Elem(), depth+1) // whose address has every method
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			failures = append(failures, byMethods(fmt.Sprintf("%s[%d]", path, i), v.Index(i), depth+1)...)
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			failures = append(failures, byMethods(fmt.Sprintf("%s[%v]", path, it.Key()), it.Value(), depth+1)...)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				failures = append(failures, byMethods(path+"."+f.Name, v.Field(i), depth+1)...)
			}
		}
	}
	if x := validatorOf(v); x != nil {
		if err := x.Validate(); err != nil {
			failures = append(failures, &Failure{Path: path, Rule: "Validate", Text: err.Error(), Err: err})
		}
	}
	return failures
}

// validatorOf is v, or a pointer to it or to a copy, as a Validator; nil when
// it has no such method.
func validatorOf(v reflect.Value) Validator {
	if !v.CanInterface() || !reflect.PointerTo(v.Type()).Implements(validatorType) {
		return nil
	}
	if !v.CanAddr() {
		p := reflect.New(v.Type())
		p.Elem().Set(v)
		v = p.Elem()
	}
	return v.Addr().Interface().(Validator)
}

var validatorType = reflect.TypeFor[Validator]()
