package directive

import (
	"fmt"
	"go/token"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Options are the options of one declaration. A nil field was not set; an
// empty one was set to nothing, which empties what an outer level says.
//
// The tags are the language: option is the key, on the kinds that take it, is
// what messages call its values, validate and range the values that are legal
// (the same thing once for the machine and once for people).
type Options struct {
	As             *string        `option:"as" on:"func" is:"ident" validate:"omitempty,ident"`
	ID             *string        `option:"id" on:"func" is:"id" validate:"omitempty,id"`
	Template       *string        `option:"template" on:"func package" is:"text" validate:"omitempty,text"`
	Provider       *string        `option:"provider" on:"func package" is:"provider" validate:"omitempty,provider"`
	Timeout        *time.Duration `option:"timeout" on:"func package" is:"duration" validate:"omitempty,gt=0s,lte=24h" range:"1ns..24h"`
	StartupTimeout *time.Duration `option:"startup_timeout" on:"func package" is:"duration" validate:"omitempty,gt=0s,lte=1h" range:"1ns..1h"`
	Grace          *time.Duration `option:"grace" on:"func package" is:"duration" validate:"omitempty,gte=0s,lte=1m" range:"0s..1m"`
	Idempotent     *bool          `option:"idempotent" on:"func package" is:"flag"`
	Retries        *int           `option:"retries" on:"func package" is:"int" validate:"omitempty,gte=0,lte=10" range:"0..10"`
	Backoff        *Backoff       `option:"backoff" on:"func package" is:"backoff" validate:"omitempty" range:"1ns<=FIRST<=MAX, FACTOR>=1"`
	Workers        *Workers       `option:"workers" on:"func package" is:"workers" validate:"omitempty" range:"0<=MIN<=MAX, 1<=MAX<=1000"`
	Idle           *time.Duration `option:"idle" on:"func package" is:"duration" validate:"omitempty,gte=0s" range:"0s and above"`
	CPU            *float64       `option:"cpu" on:"func package" is:"number" validate:"omitempty,gt=0" range:"numbers above 0"`
	Memory         *int64         `option:"memory" on:"func package" is:"size" validate:"omitempty,gt=0" range:"sizes above 0"`
	Disk           *int64         `option:"disk" on:"func package" is:"size" validate:"omitempty,gt=0" range:"sizes above 0"`
	Env            *[]Pair        `option:"env" on:"func package" is:"pairs" validate:"omitempty,dive"`
	Network        *[]string      `option:"network" on:"func package" is:"network" validate:"omitempty,network"`
	User           *string        `option:"user" on:"func package" is:"text" validate:"omitempty,text"`
	WorkDir        *string        `option:"workdir" on:"func package" is:"abspath" validate:"omitempty,abspath"`
	Log            *string        `option:"log" on:"func package" is:"log" validate:"omitempty,oneof=forward slog discard"`
	MaxPayload     *int64         `option:"max_payload" on:"func package" is:"size" validate:"omitempty,gte=65536,lte=17179869184" range:"64KiB..16GiB"`

	// Checks are the validation rules of parameters, in the order written.
	Checks []Check

	pos map[string]token.Pos // of the keys that are set
}

// Backoff is the wait between attempts.
type Backoff struct {
	First  time.Duration `validate:"gt=0s"`
	Max    time.Duration `validate:"gtefield=First"`
	Factor float64       `validate:"gte=1"`
}

// Workers bounds the number of workers.
type Workers struct {
	Min int `validate:"gte=0,ltefield=Max"`
	Max int `validate:"gte=1,lte=1000"`
}

// A Pair is one environment variable.
type Pair struct {
	Name  string `validate:"envname"`
	Value string `validate:"excludes=\x00"`
}

// A Check holds the validation rules of one parameter.
type Check struct {
	Param             string
	Rules             string
	Pos, End          token.Pos // of the whole option
	ParamPos, RulePos token.Pos
}

// unbuilt are the keys of the language that this version refuses.
var unbuilt = []string{
	"image", "spare", "concurrency", "fresh", "batch", "batch_wait", "gpu", "secrets",
	"files", "volumes", "in", "out", "codec", "nested",
}

// field describes an option: its place in the struct and what its tags say.
type field struct {
	index     int
	key       string
	on        []string
	is        string
	rangeText string
}

// fields are the options by key.
var fields = func() map[string]field {
	m := make(map[string]field)
	t := reflect.TypeFor[Options]()
	for i := range t.NumField() {
		tag := t.Field(i).Tag
		if key := tag.Get("option"); key != "" {
			m[key] = field{index: i, key: key, on: strings.Fields(tag.Get("on")), is: tag.Get("is"), rangeText: tag.Get("range")}
		}
	}
	return m
}()

// known reports whether key belongs to the language, built or not.
func known(key string) bool {
	_, ok := fields[key]
	return ok || slices.Contains(unbuilt, key) || slices.Contains(notOffered, key) || strings.HasPrefix(key, "check.")
}

// keysOf lists the options of a kind as messages show them.
func keysOf(kind Kind) []string {
	var keys []string
	for key, f := range fields {
		if slices.Contains(f.on, string(kind)) {
			keys = append(keys, key)
		}
	}
	if kind == Func {
		keys = append(keys, "check.PARAMETER")
	}
	slices.Sort(keys)
	return keys
}

// Pos returns where key was set, or token.NoPos.
func (o *Options) Pos(key string) token.Pos { return o.pos[key] }

// Decode reads the options of one declaration: lines[0] is its directive, the
// others continue it. locate prints a position for messages that name a second
// place. The options are usable for the keys that had no problem.
func Decode(lines []*Line, locate func(token.Pos) string) (*Options, []Problem) {
	d := &decoder{
		kind: lines[0].Kind, locate: locate,
		options: &Options{pos: make(map[string]token.Pos)},
		values:  make(map[string]Arg), env: make(map[string]token.Pos),
	}
	for _, l := range lines {
		for i := range l.Args {
			d.arg(&l.Args[i])
		}
	}
	d.validate()
	return d.options, d.problems
}

// decoder fills the options of one declaration.
type decoder struct {
	kind     Kind
	locate   func(token.Pos) string
	options  *Options
	values   map[string]Arg       // last argument of each key that was decoded
	env      map[string]token.Pos // names of variables seen
	problems []Problem
}

func (d *decoder) fail(pos, end token.Pos, code, message string, fix *Fix) {
	d.problems = append(d.problems, Problem{Pos: pos, End: end, Code: code, Message: message, Fix: fix})
}

// arg reads one option.
func (d *decoder) arg(a *Arg) {
	f, ok := fields[a.Key]
	if !ok || !slices.Contains(f.on, string(d.kind)) {
		if param, isCheck := strings.CutPrefix(a.Key, "check."); isCheck && d.kind == Func && token.IsIdentifier(param) {
			d.check(a, param)
			return
		}
		d.unknown(a)
		return
	}
	switch {
	case f.is == "flag" && a.HasValue:
		d.fail(a.ValuePos, a.End, "G012", "option "+a.Key+" takes no value", &Fix{Pos: a.Pos, End: a.End, Text: a.Key})
		return
	case f.is != "flag" && !a.HasValue:
		d.fail(a.Pos, a.End, "G012", "option "+a.Key+" needs a value", nil)
		return
	}
	list := f.is == "pairs" || f.is == "network"
	if first, twice := d.options.pos[a.Key]; twice && !list {
		d.fail(a.Pos, a.End, "G011", "option "+a.Key+" is set twice; first at "+d.locate(first), nil)
		return
	} else if !twice {
		d.options.pos[a.Key] = a.Pos
	}
	if d.set(f, a) {
		d.values[a.Key] = *a
	}
}

// check notes the rules of a parameter; whether they fit it is for those who
// know its type.
func (d *decoder) check(a *Arg, param string) {
	if !a.HasValue || a.Value == "" {
		d.fail(a.Pos, a.End, "G012", "option "+a.Key+" needs a value", nil)
		return
	}
	if first, twice := d.options.pos[a.Key]; twice {
		d.fail(a.Pos, a.End, "G011", "option "+a.Key+" is set twice; first at "+d.locate(first), nil)
		return
	}
	d.options.pos[a.Key] = a.Pos
	d.options.Checks = append(d.options.Checks, Check{
		Param: param, Rules: a.Value, Pos: a.Pos, End: a.End,
		ParamPos: a.Pos + token.Pos(len("check.")), RulePos: a.ValuePos,
	})
}

// unknown reports a key that can't be used here.
func (d *decoder) unknown(a *Arg) {
	remove := &Fix{Pos: a.Pos, End: a.End}
	_, elsewhere := fields[a.Key]
	keyEnd := a.Pos + token.Pos(len(a.Key))
	switch {
	case slices.Contains(unbuilt, a.Key):
		d.fail(a.Pos, keyEnd, "G010", "option "+a.Key+" is not supported yet by this version", remove)
		return
	case slices.Contains(notOffered, a.Key):
		d.fail(a.Pos, keyEnd, "G010", "option "+a.Key+" is not supported", remove)
		return
	case elsewhere || strings.HasPrefix(a.Key, "check.") && isKey(a.Key):
		d.fail(a.Pos, keyEnd, "G010", "option "+a.Key+" does not belong on //sandbox:"+string(d.kind)+
			"; options of "+string(d.kind)+" are "+strings.Join(keysOf(d.kind), ", "), remove)
		return
	}
	message := "unknown option " + show(a.Key)
	if near := nearest(strings.ToLower(a.Key), append(keysOf(d.kind), unbuilt...)); near != "" {
		d.fail(a.Pos, keyEnd, "G010", message+"; did you mean "+near+"?", &Fix{Pos: a.Pos, End: keyEnd, Text: near})
		return
	}
	d.fail(a.Pos, keyEnd, "G010", message+"; options of "+string(d.kind)+" are "+strings.Join(keysOf(d.kind), ", "), remove)
}

// Merge lays inner over outer, which may be nil: scalars of the inner level
// win, lists and pairs of the outer level come first, and an inner list that
// is empty empties both.
func Merge(outer, inner *Options) *Options {
	if outer == nil {
		return inner
	}
	m := *inner
	m.pos = maps.Clone(inner.pos)
	in, out := reflect.ValueOf(inner).Elem(), reflect.ValueOf(outer).Elem()
	to := reflect.ValueOf(&m).Elem()
	for _, f := range fields {
		if in.Field(f.index).IsNil() && !out.Field(f.index).IsNil() {
			to.Field(f.index).Set(out.Field(f.index))
			m.pos[f.key] = outer.pos[f.key]
		}
	}
	if outer.Env != nil && inner.Env != nil && len(*inner.Env) > 0 {
		env := slices.DeleteFunc(slices.Clone(*outer.Env), func(o Pair) bool {
			return slices.ContainsFunc(*inner.Env, func(i Pair) bool { return i.Name == o.Name })
		})
		env = append(env, *inner.Env...)
		m.Env = &env
	}
	if outer.Network != nil && inner.Network != nil && isHostList(*outer.Network) && isHostList(*inner.Network) {
		hosts := append(slices.Clone(*outer.Network), *inner.Network...)
		m.Network = &hosts
	}
	return &m
}

// Conflicts reports options that don't go together, after Merge.
func (o *Options) Conflicts() []Problem {
	if o.Retries != nil && *o.Retries > 0 && (o.Idempotent == nil || !*o.Idempotent) {
		pos := o.pos["retries"]
		return []Problem{{Pos: pos, End: pos + token.Pos(len("retries")), Code: "G015",
			Message: "option retries needs idempotent: a retried call may run twice"}}
	}
	return nil
}

// Set calls yield for every option that is set, by key, with its value as a
// directive would spell it: texts, whole numbers, floats, flags and lists.
func (o *Options) Set() iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		v := reflect.ValueOf(o).Elem()
		for _, key := range slices.Sorted(maps.Keys(fields)) {
			f := v.Field(fields[key].index)
			if f.IsNil() {
				continue
			}
			if !yield(key, spell(f.Elem().Interface())) {
				return
			}
		}
		for _, c := range o.Checks {
			if !yield("check."+c.Param, c.Rules) {
				return
			}
		}
	}
}

// spell gives the value of an option in the form of the language.
func spell(v any) any {
	switch v := v.(type) {
	case time.Duration:
		return v.String()
	case Backoff:
		return fmt.Sprintf("%v..%v*%v", v.First, v.Max, v.Factor)
	case Workers:
		return fmt.Sprintf("%d..%d", v.Min, v.Max)
	case []Pair:
		list := []string{}
		for _, p := range v {
			list = append(list, p.Name+"="+p.Value)
		}
		return list
	case int64:
		for _, u := range slices.Backward(units[:4]) {
			if v%u.size == 0 && v != 0 {
				return fmt.Sprintf("%d%s", v/u.size, u.name)
			}
		}
		return v
	}
	return v
}
