package directive

import (
	"fmt"
	"go/token"
	"iter"
	"maps"
	"path"
	"reflect"
	"slices"
	"strconv"
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
	As             *string        `option:"as" on:"func class method" is:"ident" validate:"omitempty,ident"`
	ID             *string        `option:"id" on:"func class" is:"id" validate:"omitempty,id"`
	Template       *string        `option:"template" on:"func class package" is:"text" validate:"omitempty,text"`
	Image          *string        `option:"image" on:"func class package" is:"image" validate:"omitempty,image"`
	Provider       *string        `option:"provider" on:"func class package" is:"provider" validate:"omitempty,provider"`
	Timeout        *time.Duration `option:"timeout" on:"func class method package" is:"duration" validate:"omitempty,gt=0s,lte=24h" range:"1ns..24h"`
	StartupTimeout *time.Duration `option:"startup_timeout" on:"func class package" is:"duration" validate:"omitempty,gt=0s,lte=1h" range:"1ns..1h"`
	Grace          *time.Duration `option:"grace" on:"func class method package" is:"duration" validate:"omitempty,gte=0s,lte=1m" range:"0s..1m"`
	Idempotent     *bool          `option:"idempotent" on:"func method package" is:"flag"`
	Retries        *int           `option:"retries" on:"func method package" is:"int" validate:"omitempty,gte=0,lte=10" range:"0..10"`
	Backoff        *Backoff       `option:"backoff" on:"func method package" is:"backoff" validate:"omitempty" range:"1ns<=FIRST<=MAX, FACTOR>=1"`
	Workers        *Workers       `option:"workers" on:"func class package" is:"workers" validate:"omitempty" range:"0<=MIN<=MAX, 1<=MAX<=1000"`
	Spare          *int           `option:"spare" on:"func class package" is:"int" validate:"omitempty,gte=0,lte=1000" range:"0..1000"`
	Idle           *time.Duration `option:"idle" on:"func class package" is:"duration" validate:"omitempty,gte=0s" range:"0s and above"`
	Concurrency    *int           `option:"concurrency" on:"func class package" is:"int" validate:"omitempty,gte=1,lte=1000" range:"1..1000"`
	Fresh          *bool          `option:"fresh" on:"func package" is:"flag"`
	Batch          *int           `option:"batch" on:"func method" is:"int" validate:"omitempty,gte=2,lte=1000" range:"2..1000"`
	BatchWait      *time.Duration `option:"batch_wait" on:"func method" is:"duration" validate:"omitempty,gt=0s" range:"1ns and above"`
	CPU            *float64       `option:"cpu" on:"func class package" is:"number" validate:"omitempty,gt=0" range:"numbers above 0"`
	Memory         *int64         `option:"memory" on:"func class package" is:"size" validate:"omitempty,gt=0" range:"sizes above 0"`
	Disk           *int64         `option:"disk" on:"func class package" is:"size" validate:"omitempty,gt=0" range:"sizes above 0"`
	GPU            *string        `option:"gpu" on:"func class package" is:"gpu" validate:"omitempty,gpu"`
	Env            *[]Pair        `option:"env" on:"func class package" is:"pairs" validate:"omitempty,dive"`
	Secrets        *[]Secret      `option:"secrets" on:"func class package" is:"secrets"`
	Files          *[]File        `option:"files" on:"func class package" is:"files"`
	Volumes        *[]Volume      `option:"volumes" on:"func class package" is:"volumes"`
	Network        *[]string      `option:"network" on:"func class package" is:"network"`
	User           *string        `option:"user" on:"func class package" is:"text" validate:"omitempty,text"`
	WorkDir        *string        `option:"workdir" on:"func class package" is:"abspath" validate:"omitempty,abspath"`
	In             *[]Name        `option:"in" on:"func method" is:"names"`
	Out            *[]Name        `option:"out" on:"func method" is:"names"`
	Log            *string        `option:"log" on:"func class method package" is:"log" validate:"omitempty,oneof=forward slog discard"`
	MaxPayload     *int64         `option:"max_payload" on:"func class method package" is:"size" validate:"omitempty,gte=65536,lte=17179869184" range:"64KiB..16GiB"`
	Codec          *string        `option:"codec" on:"func class package" is:"codec" validate:"omitempty,oneof=cbor json"`
	Nested         *string        `option:"nested" on:"func class package" is:"nested" validate:"omitempty,oneof=caller local refuse"`

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

// A Secret is one variable that is filled from a secret.
type Secret struct {
	Name   string
	Source string // name of the secret; "" means Name
	Pos    token.Pos
}

// A File is a file or a folder that a sandbox gets.
type File struct {
	Local    string // as written, relative to the folder of the source
	Remote   string
	Pos, End token.Pos // of Local
}

// A Volume is storage of the provider.
type Volume struct {
	Name, Path string
	ReadOnly   bool
	Pos, End   token.Pos
}

// A Name is the name of a parameter.
type Name struct {
	Text string
	Pos  token.Pos
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
	return ok || slices.Contains(notOffered, key) || strings.HasPrefix(key, "check.")
}

// keysOf lists the options of a kind as messages show them.
func keysOf(kind Kind) []string {
	var keys []string
	for key, f := range fields {
		if slices.Contains(f.on, string(kind)) {
			keys = append(keys, key)
		}
	}
	if checks(kind) {
		keys = append(keys, "check.PARAMETER")
	}
	slices.Sort(keys)
	return keys
}

// checks reports whether a kind takes rules for its parameters.
func checks(kind Kind) bool { return kind == Func || kind == Method }

// Pos returns where key was set, or token.NoPos.
func (o *Options) Pos(key string) token.Pos { return o.pos[key] }

// Decode reads the options of one declaration: lines[0] is its directive, the
// others continue it. locate prints a position for messages that name a second
// place. The options are usable for the keys that had no problem.
func Decode(lines []*Line, locate func(token.Pos) string) (*Options, []Problem) {
	d := &decoder{
		kind: lines[0].Kind, locate: locate,
		options: &Options{pos: make(map[string]token.Pos)},
		values:  make(map[string]Arg), seen: make(map[string]token.Pos),
	}
	for _, l := range lines {
		for i := range l.Args {
			d.before = nil
			if i > 0 {
				d.before = &l.Args[i-1]
			}
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
	before   *Arg                 // what stands before the option at hand, on its line
	values   map[string]Arg       // last argument of each key that was decoded
	seen     map[string]token.Pos // elements of lists that must differ, by key and what they name
	problems []Problem
}

func (d *decoder) fail(pos, end token.Pos, code, message string, fix *Fix) {
	d.problems = append(d.problems, Problem{Pos: pos, End: end, Code: code, Message: message, Fix: fix})
}

// arg reads one option.
func (d *decoder) arg(a *Arg) {
	f, ok := fields[a.Key]
	if !ok || !slices.Contains(f.on, string(d.kind)) {
		if param, isCheck := strings.CutPrefix(a.Key, "check."); isCheck && checks(d.kind) && token.IsIdentifier(param) {
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
	if first, twice := d.options.pos[a.Key]; twice && !slices.Contains(lists, f.is) {
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
	case slices.Contains(notOffered, a.Key):
		d.fail(a.Pos, keyEnd, "G010", "option "+a.Key+" is not supported", remove)
		return
	case elsewhere || strings.HasPrefix(a.Key, "check.") && isKey(a.Key):
		d.fail(a.Pos, keyEnd, "G010", "option "+a.Key+" does not belong on //sandbox:"+string(d.kind)+"; "+optionsOf(d.kind), remove)
		return
	}
	message := "unknown option " + show(a.Key)
	near := nearest(strings.ToLower(a.Key), keysOf(d.kind))
	if near == "" {
		near = begunBy(a.Key, keysOf(d.kind))
	}
	if near != "" {
		d.fail(a.Pos, keyEnd, "G010", message+"; did you mean "+near+"?", &Fix{Pos: a.Pos, End: keyEnd, Text: near})
		return
	}
	if b := d.before; b != nil && b.Value != "" && slices.Contains(lists, fields[b.Key].is) { // env=GREETING=good day
		d.fail(a.Pos, keyEnd, "G010", message+"; if it belongs to the value of "+b.Key+", quote that: "+b.Key+"="+strconv.Quote(b.Value+" …"), remove)
		return
	}
	d.fail(a.Pos, keyEnd, "G010", message+"; "+optionsOf(d.kind), remove)
}

// begunBy is the one key that begins with s: memory for mem.
func begunBy(s string, keys []string) string {
	if len(s) < 3 {
		return ""
	}
	var found string
	for _, k := range keys {
		if strings.HasPrefix(k, s) && !strings.Contains(k, ".") {
			if found != "" {
				return ""
			}
			found = k
		}
	}
	return found
}

// optionsOf is the tail of a message that says what a kind takes.
func optionsOf(kind Kind) string {
	keys := keysOf(kind)
	if len(keys) == 0 {
		return string(kind) + " takes no options"
	}
	return "options of " + string(kind) + " are " + strings.Join(keys, ", ")
}

// Merge lays inner over outer, which may be nil: scalars of the inner level
// win, lists and pairs of the outer level come first, and an inner list that
// is empty empties both. What the inner level says in place of something else,
// an image in place of a template for example, takes that away too.
func Merge(outer, inner *Options) *Options {
	if outer == nil {
		return inner
	}
	m := *inner
	m.pos = maps.Clone(inner.pos)
	in, out := reflect.ValueOf(inner).Elem(), reflect.ValueOf(outer).Elem()
	to := reflect.ValueOf(&m).Elem()
	for _, f := range fields {
		if in.Field(f.index).IsNil() && !out.Field(f.index).IsNil() && !replaced(f.key, inner) {
			to.Field(f.index).Set(out.Field(f.index))
			m.pos[f.key] = outer.pos[f.key]
		}
	}
	m.Env = mergeList(outer.Env, inner.Env, func(a, b Pair) bool { return a.Name == b.Name })
	m.Secrets = mergeList(outer.Secrets, inner.Secrets, func(a, b Secret) bool { return a.Name == b.Name })
	m.Files = mergeList(outer.Files, inner.Files, func(a, b File) bool { return path.Clean(a.Remote) == path.Clean(b.Remote) })
	m.Volumes = mergeList(outer.Volumes, inner.Volumes, func(a, b Volume) bool { return path.Clean(a.Path) == path.Clean(b.Path) })
	if outer.Network != nil && inner.Network != nil && isHostList(*outer.Network) && isHostList(*inner.Network) {
		hosts := append(slices.Clone(*outer.Network), *inner.Network...)
		m.Network = &hosts
	}
	return &m
}

// replaced reports whether inner has something in place of key.
func replaced(key string, inner *Options) bool {
	set := func(s *string) bool { return s != nil && *s != "" }
	switch key {
	case "template":
		return set(inner.Image)
	case "image":
		return set(inner.Template)
	case "spare", "idle", "concurrency":
		return inner.Fresh != nil
	}
	return false
}

// mergeList appends inner to what it does not replace of outer.
func mergeList[E any](outer, inner *[]E, same func(a, b E) bool) *[]E {
	switch {
	case inner == nil:
		return outer
	case outer == nil || len(*inner) == 0:
		return inner
	}
	list := slices.DeleteFunc(slices.Clone(*outer), func(o E) bool {
		return slices.ContainsFunc(*inner, func(i E) bool { return same(o, i) })
	})
	list = append(list, *inner...)
	return &list
}

// For returns the options of o, which stand around a declaration of the given
// kind, that count as its defaults: what it takes, but for its own name and what
// is about parameters.
func (o *Options) For(kind Kind) *Options {
	return o.keep(func(f field) bool {
		return slices.Contains(f.on, string(kind)) && slices.Contains(f.on, string(Package))
	})
}

// Without returns the options of o that a kind does not take.
func (o *Options) Without(kind Kind) *Options {
	return o.keep(func(f field) bool { return !slices.Contains(f.on, string(kind)) })
}

func (o *Options) keep(which func(field) bool) *Options {
	m := *o
	m.pos = maps.Clone(o.pos)
	v := reflect.ValueOf(&m).Elem()
	for _, f := range fields {
		if !which(f) {
			v.Field(f.index).SetZero()
			delete(m.pos, f.key)
		}
	}
	return &m
}

// Conflicts reports options that don't go together, after Merge.
func (o *Options) Conflicts() []Problem {
	var problems []Problem
	fail := func(key, message string) {
		pos := o.pos[key]
		problems = append(problems, Problem{Pos: pos, End: pos + token.Pos(len(key)), Code: "G015", Message: message})
	}
	exclude := func(a, b string) {
		if o.pos[a] > o.pos[b] { // where the second one stands
			fail(a, "options "+b+" and "+a+" exclude each other")
			return
		}
		fail(b, "options "+a+" and "+b+" exclude each other")
	}
	if o.Retries != nil && *o.Retries > 0 && (o.Idempotent == nil || !*o.Idempotent) {
		fail("retries", "option retries needs idempotent: a retried call may run twice")
	}
	if o.Template != nil && *o.Template != "" && o.Image != nil && *o.Image != "" {
		exclude("template", "image")
	}
	if o.Fresh != nil && *o.Fresh {
		if o.Concurrency != nil && *o.Concurrency > 1 {
			exclude("fresh", "concurrency")
		}
		if o.Spare != nil && *o.Spare > 0 {
			exclude("fresh", "spare")
		}
		if o.Idle != nil {
			exclude("fresh", "idle")
		}
	}
	if o.BatchWait != nil && o.Batch == nil {
		fail("batch_wait", "option batch_wait needs batch: there is nothing to wait for")
	}
	if o.Volumes != nil {
		for i, v := range *o.Volumes {
			for _, w := range (*o.Volumes)[:i] {
				a, b := path.Clean(v.Path)+"/", path.Clean(w.Path)+"/"
				if strings.HasPrefix(a, b) || strings.HasPrefix(b, a) {
					problems = append(problems, Problem{Pos: v.Pos, End: v.End, Code: "G015",
						Message: "option volumes: " + v.Name + " at " + v.Path + " and " + w.Name + " at " + w.Path + " lie in one another"})
				}
			}
		}
	}
	if o.Env != nil && o.Secrets != nil {
		for _, s := range *o.Secrets {
			if slices.ContainsFunc(*o.Env, func(p Pair) bool { return p.Name == s.Name }) {
				problems = append(problems, Problem{Pos: s.Pos, End: s.Pos + token.Pos(len(s.Name)), Code: "G015",
					Message: "options env and secrets exclude each other: both set " + s.Name})
			}
		}
	}
	return problems
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
	case []Secret:
		list := []string{}
		for _, s := range v {
			if s.Source != "" {
				s.Name += "=" + s.Source
			}
			list = append(list, s.Name)
		}
		return list
	case []File:
		list := []string{}
		for _, f := range v {
			list = append(list, f.Local+":"+f.Remote)
		}
		return list
	case []Volume:
		list := []string{}
		for _, n := range v {
			text := n.Name + ":" + n.Path
			if n.ReadOnly {
				text += ":ro"
			}
			list = append(list, text)
		}
		return list
	case []Name:
		list := []string{}
		for _, n := range v {
			list = append(list, n.Text)
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
