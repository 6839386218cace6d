package sandboxfn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envelope"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Fields with the items default=, secret= and env= in their sandbox tag are
// filled by the library, in classes and in everything that travels:
//
//   - default= in the caller, before the arguments are checked and sent, in a
//     copy of what the user passed; and again in the worker, whose caller may be
//     another program.
//   - secret= and env= in the worker, after decoding and before the check. Such
//     fields are never sent, in neither direction.

// tagPlan says which fields of a type are filled, however deep they are.
type tagPlan struct {
	typ    reflect.Type
	fields []tagField // of a struct
	elem   *tagPlan   // of a pointer, slice, array or map
	used   bool       // it leads to a field that is filled
}

// tagField is a field of a struct.
type tagField struct {
	index            int
	name             string
	open             bool // unexported, but embedded: reached past reflect's guard
	def, secret, env *string
	plan             *tagPlan
}

var tagPlans struct {
	sync.Mutex
	m map[reflect.Type]*tagPlan
}

// tagPlanOf returns the plan of t; nil when nothing in t is filled.
func tagPlanOf(t reflect.Type) *tagPlan {
	tagPlans.Lock()
	defer tagPlans.Unlock()
	if tagPlans.m == nil {
		tagPlans.m = map[reflect.Type]*tagPlan{}
	}
	p := tagPlanLocked(t)
	if p == nil || !p.used {
		return nil
	}
	return p
}

func tagPlanLocked(t reflect.Type) *tagPlan {
	if p, ok := tagPlans.m[t]; ok {
		return p
	}
	fresh := map[*tagPlan]bool{}
	p := makeTagPlan(t, fresh)
	// A type that contains itself is used when anything in the circle is.
	for again := true; again; {
		again = false
		for q := range fresh {
			if !q.used && q.leads() {
				q.used, again = true, true
			}
		}
	}
	return p
}

// leads reports whether p is known to lead to a field that is filled.
func (p *tagPlan) leads() bool {
	if p.elem != nil && p.elem.used {
		return true
	}
	for _, f := range p.fields {
		if f.filled() || f.plan != nil && f.plan.used {
			return true
		}
	}
	return false
}

func (f *tagField) filled() bool { return f.def != nil || f.secret != nil || f.env != nil }

func makeTagPlan(t reflect.Type, fresh map[*tagPlan]bool) *tagPlan {
	if p, ok := tagPlans.m[t]; ok {
		return p
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
	default:
		return nil
	}
	p := &tagPlan{typ: t}
	tagPlans.m[t] = p
	fresh[p] = true
	if t.Kind() != reflect.Struct {
		p.elem = makeTagPlan(t.Elem(), fresh)
		return p
	}
	for i := range t.NumField() {
		sf := t.Field(i)
		f := tagField{index: i, name: sf.Name, open: !sf.IsExported()}
		if f.open && !(sf.Anonymous && sf.Type.Kind() == reflect.Struct) {
			continue
		}
		skip := false
		for _, it := range envelope.TagItems(sf.Tag) {
			switch it.Key {
			case "-":
				skip = true
			case "default":
				f.def = &it.Value
			case "secret":
				f.secret = &it.Value
			case "env":
				f.env = &it.Value
			}
		}
		if skip {
			continue
		}
		if !f.filled() {
			f.plan = makeTagPlan(sf.Type, fresh)
		}
		if f.filled() || f.plan != nil {
			p.fields = append(p.fields, f)
		}
	}
	return p
}

// filler fills fields.
type filler struct {
	lookup func(string) (string, bool) // variables of the worker; nil in the caller
	copies bool                        // what v refers to is the user's: it is copied before it is changed
}

// fill fills the fields of v, which must be addressable.
func (f *filler) fill(p *tagPlan, v reflect.Value, path string, depth int) error {
	const most = 1000
	switch {
	case p == nil || !p.used:
		return nil
	case depth > most:
		return errTooDeep
	}
	switch v.Kind() {
	case reflect.Struct:
		return f.fields(p, v, path, depth)
	case reflect.Pointer:
		if v.IsNil() || p.elem == nil {
			return nil
		}
		if f.copies {
			c := reflect.New(v.Type().Elem())
			c.Elem().Set(v.Elem())
			v.Set(c.Convert(v.Type()))
		}
		return f.fill(p.elem, v.Elem(), path, depth+1)
	case reflect.Slice:
		if f.copies && !v.IsNil() {
			c := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
			reflect.Copy(c, v)
			v.Set(c)
		}
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			if err := f.fill(p.elem, v.Index(i), path+"["+strconv.Itoa(i)+"]", depth+1); err != nil {
				return err
			}
		}
	case reflect.Map:
		return f.mapValues(p, v, path, depth)
	}
	return nil
}

func (f *filler) mapValues(p *tagPlan, v reflect.Value, path string, depth int) error {
	if v.IsNil() {
		return nil
	}
	m := v
	if f.copies {
		m = reflect.MakeMapWithSize(v.Type(), v.Len())
	}
	for i := v.MapRange(); i.Next(); {
		x := reflect.New(v.Type().Elem()).Elem()
		x.Set(i.Value())
		if err := f.fill(p.elem, x, fmt.Sprintf("%s[%v]", path, i.Key()), depth+1); err != nil {
			return err
		}
		m.SetMapIndex(i.Key(), x)
	}
	v.Set(m)
	return nil
}

func (f *filler) fields(p *tagPlan, v reflect.Value, path string, depth int) error {
	for i := range p.fields {
		tf := &p.fields[i]
		field, at := v.Field(tf.index), path+"."+tf.name
		if tf.open {
			field = reflect.NewAt(field.Type(), field.Addr().UnsafePointer()).Elem()
		}
		var err error
		switch {
		case tf.secret != nil && f.lookup != nil:
			err = f.variable(field, *tf.secret)
		case tf.env != nil && f.lookup != nil:
			err = f.variable(field, *tf.env)
		case tf.plan != nil:
			err = f.fill(tf.plan, field, at, depth+1)
			at = ""
		}
		if err == nil && tf.def != nil && field.IsZero() {
			err = setText(field, *tf.def)
		}
		if err != nil {
			if at == "" {
				return err
			}
			return fmt.Errorf("%s: %w", strings.TrimPrefix(at, "."), err)
		}
	}
	return nil
}

// variable fills a field from a variable of the worker. Its value is in no
// error: it may be a secret.
func (f *filler) variable(field reflect.Value, name string) error {
	text, ok := f.lookup(name)
	if !ok {
		return nil
	}
	if setText(field, text) != nil {
		return fmt.Errorf("the value of variable %s is no %s", name, field.Type())
	}
	return nil
}

var errNotText = errors.New("can't be written as text")

// errTooDeep is for values that contain themselves. They are refused when they
// are encoded, with the right error.
var errTooDeep = errors.New("too deep")

// setText sets a value of a basic kind, a duration or a list of them from text;
// elements of a list are joined by commas.
func setText(v reflect.Value, text string) error {
	t := v.Type()
	switch t {
	case reflect.TypeFor[time.Duration]():
		d, err := time.ParseDuration(text)
		v.SetInt(int64(d))
		return err
	case reflect.TypeFor[Secret]():
		v.Set(reflect.ValueOf(NewSecret(text)))
		return nil
	}
	switch t.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		v.SetBool(b)
		return err
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(text, base(text), t.Bits())
		v.SetInt(n)
		return err
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, err := strconv.ParseUint(text, base(text), t.Bits())
		v.SetUint(n)
		return err
	case reflect.Float32, reflect.Float64:
		x, err := strconv.ParseFloat(text, t.Bits())
		v.SetFloat(x)
		return err
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			v.Set(reflect.ValueOf([]byte(text)).Convert(t))
			return nil
		}
		parts := strings.Split(text, ",")
		if text == "" {
			parts = nil
		}
		list := reflect.MakeSlice(t, len(parts), len(parts))
		for i, part := range parts {
			if err := setText(list.Index(i), part); err != nil {
				return err
			}
		}
		v.Set(list)
	default:
		return errNotText
	}
	return nil
}

// base is that of a number: 10, unless a letter says another. A leading zero is
// a zero.
func base(text string) int {
	if strings.ContainsAny(text, "xXoObB_") {
		return 0
	}
	return 10
}

// fillDefaults fills what args points to in the caller. What it refers to stays
// as the user has it: what changes is copied.
func fillDefaults(name string, args any) error {
	v := reflect.ValueOf(args).Elem()
	p := tagPlanOf(v.Type())
	if p == nil {
		return nil
	}
	return filled(name, (&filler{copies: true}).fill(p, v, "", 0))
}

// fillTags fills what v points to in the worker.
func fillTags(ctx context.Context, name string, target any) error {
	v := reflect.ValueOf(target).Elem()
	p := tagPlanOf(v.Type())
	if p == nil {
		return nil
	}
	return filled(name, (&filler{lookup: lookupEnv(ctx)}).fill(p, v, "", 0))
}

func filled(name string, err error) error {
	if err == nil || errors.Is(err, errTooDeep) {
		return nil
	}
	return errdefs.New("E9001", name, err.Error())
}

type envKey struct{}

// withEnv returns a context under which a function that runs in this process
// finds the variables a worker of its own would have.
func withEnv(ctx context.Context, lookup func(string) (string, bool)) context.Context {
	return context.WithValue(ctx, envKey{}, lookup)
}

// lookupEnv finds variables of the worker that runs the call of ctx.
func lookupEnv(ctx context.Context) func(string) (string, bool) {
	if lookup, ok := ctx.Value(envKey{}).(func(string) (string, bool)); ok {
		return lookup
	}
	return os.LookupEnv
}
