package command

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// RegisterOptions says more about a function. The zero value is usable.
type RegisterOptions struct {
	Description string
	Hidden      bool          // it can be run, but is not listed
	Timeout     time.Duration // ends the context of a call; zero: [DefaultTimeout]; negative: none
}

// Register makes run the command called name. A nil o is the zero
// RegisterOptions.
//
// The arguments are the exported fields of the struct A: strings, booleans,
// integers, floats, and pointers to them. A field's name is that of its json tag,
// or its own in lower case; a tag `default:"…"` gives it a default and `doc:"…"` a
// description. It need not be given when it has a default, is a pointer, or its
// json tag says omitempty or omitzero. The result has to be such that package json
// can encode it.
//
// A call's context ends with its timeout and when the caller has gone. An error
// or a panic of run is reported to the caller. run is called concurrently, in the
// process of the runtime, with its rights: no policy but its own limits it. To run
// programs it uses [Exec].
//
// E3011 is returned for a name that is malformed or taken, an A that is no such
// struct, and a server that has started.
func Register[A, R any](r *Registry, name string, run func(context.Context, A) (R, error), o *RegisterOptions) error {
	var opts RegisterOptions
	if o != nil {
		opts = *o
	}
	t := reflect.TypeFor[A]()
	fields, err := fieldsOf(t)
	if err != nil {
		return errdefs.New("E3011", opRegister, "command "+name+": "+err.Error())
	}
	e := &entry{info: Info{Name: name, Description: opts.Description, Args: []Arg{}}, hidden: opts.Hidden, timeout: opts.Timeout}
	for _, f := range fields {
		e.info.Args = append(e.info.Args, f.arg)
	}
	e.call = func(ctx context.Context, values map[string]any) (any, error) {
		var args A
		v := reflect.ValueOf(&args).Elem()
		for _, f := range fields {
			if err := f.set(v, values[f.arg.Name]); err != nil {
				return nil, err
			}
		}
		return run(ctx, args)
	}
	return r.add(e)
}

// field is one argument of a function.
type field struct {
	arg   Arg
	index int
}

// fieldsOf lists the arguments that the struct t stands for.
func fieldsOf(t reflect.Type) ([]field, error) {
	if t.Kind() != reflect.Struct {
		return nil, fmt.Errorf("its arguments are a %s, not a struct", t)
	}
	var out []field
	var args []Arg
	for i := range t.NumField() {
		sf := t.Field(i)
		tag, options, _ := strings.Cut(sf.Tag.Get("json"), ",")
		if !sf.IsExported() || tag == "-" && options == "" {
			continue
		}
		kind := sf.Type
		if kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		a := Arg{Name: tag, Type: typeOf(kind), Description: sf.Tag.Get("doc")}
		if a.Name == "" {
			a.Name = strings.ToLower(sf.Name)
		}
		if a.Type == "" || sf.Anonymous {
			return nil, fmt.Errorf("field %s is a %s, not a string, an integer, a float or a boolean", sf.Name, sf.Type)
		}
		def, ok := sf.Tag.Lookup("default")
		if ok {
			if a.Default, ok = a.parse(def); !ok {
				return nil, fmt.Errorf("the default of field %s is not %s", sf.Name, article(a.Type))
			}
		}
		optional := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
		a.Required = a.Default == nil && sf.Type.Kind() != reflect.Pointer && !optional
		f := field{a, i}
		if err := f.set(reflect.New(t).Elem(), a.Default); err != nil {
			return nil, fmt.Errorf("the default of field %s is out of range", sf.Name)
		}
		out, args = append(out, f), append(args, a)
	}
	return out, checkArgs(args)
}

func typeOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return typeString
	case reflect.Bool:
		return typeBoolean
	case reflect.Float32, reflect.Float64:
		return typeFloat
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return typeInteger
	}
	return ""
}

// set puts a bound value into the field of v; nil leaves it as it is.
func (f field) set(v reflect.Value, value any) error {
	if value == nil {
		return nil
	}
	to := v.Field(f.index)
	if to.Kind() == reflect.Pointer {
		to.Set(reflect.New(to.Type().Elem()))
		to = to.Elem()
	}
	fits := true
	switch value := value.(type) {
	case string:
		to.SetString(value)
	case bool:
		to.SetBool(value)
	case float64:
		if fits = !to.OverflowFloat(value); fits {
			to.SetFloat(value)
		}
	case int64:
		if to.CanInt() {
			if fits = !to.OverflowInt(value); fits {
				to.SetInt(value)
			}
			break
		}
		if fits = value >= 0 && !to.OverflowUint(uint64(value)); fits {
			to.SetUint(uint64(value))
		}
	}
	if !fits {
		return badArgument("argument %s is out of range for %s", f.arg.Name, to.Type())
	}
	return nil
}
