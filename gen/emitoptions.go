package gen

import (
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dave/jennifer/jen"

	"github.com/agent-sandbox/sandbox-go/gen/directive"
)

// optionWriter gathers the fields of an Options literal.
type optionWriter struct {
	coder *typeCoder
	set   []jen.Code
}

// options writes the fields that directives set, in the order of the struct:
//
//	Template: "base", Timeout: 30 * time.Second, Retries: sandboxfn.NoRetries
func options(o *directive.Options, coder *typeCoder) []jen.Code {
	w := &optionWriter{coder: coder}
	w.text("Template", o.Template)
	w.text("Image", o.Image)
	w.text("Provider", o.Provider)
	w.duration("Timeout", o.Timeout, "")
	w.duration("StartupTimeout", o.StartupTimeout, "")
	w.duration("Grace", o.Grace, "NoGrace")
	w.retries(o)
	w.workers(o.Workers)
	w.number("Spare", o.Spare)
	w.duration("Idle", o.Idle, "NoIdle")
	w.number("Concurrency", o.Concurrency)
	w.flag("Fresh", o.Fresh)
	w.number("Batch", o.Batch)
	w.duration("BatchWait", o.BatchWait, "")
	if o.CPU != nil {
		w.add("CPU", floatCode(*o.CPU))
	}
	w.size("Memory", o.Memory)
	w.size("Disk", o.Disk)
	w.text("GPU", o.GPU)
	w.env(o.Env)
	w.secrets(o.Secrets)
	w.files(o.Files)
	w.volumes(o.Volumes)
	if o.Network != nil {
		joined := strings.Join(*o.Network, ",")
		w.text("Network", &joined)
	}
	w.text("User", o.User)
	w.text("WorkDir", o.WorkDir)
	w.name("Log", "Log", o.Log)
	w.size("MaxPayload", o.MaxPayload)
	if o.Codec != nil && *o.Codec != "" {
		w.add("Codec", named("Codec"+strings.ToUpper(*o.Codec)))
	}
	w.name("Nested", "Nested", o.Nested)
	return w.set
}

// named writes a name of the runtime library.
func named(name string) *jen.Statement { return jen.Qual(sandboxfnPath, name) }

func (w *optionWriter) add(name string, value *jen.Statement) {
	w.set = append(w.set, jen.Id(name).Op(":").Add(value))
}

// text writes a text unless it is empty, which is the same as unset.
func (w *optionWriter) text(name string, s *string) {
	if s != nil && *s != "" {
		w.add(name, jen.Lit(*s))
	}
}

// name writes one of the values of the runtime library whose names start with
// prefix.
func (w *optionWriter) name(field, prefix string, s *string) {
	if s != nil && *s != "" {
		w.add(field, named(prefix+upperFirst(*s)))
	}
}

// number writes a number unless it is zero, which is the same as unset.
func (w *optionWriter) number(name string, n *int) {
	if n != nil && *n != 0 {
		w.add(name, jen.Lit(*n))
	}
}

func (w *optionWriter) flag(name string, set *bool) {
	if set != nil && *set {
		w.add(name, w.coder.truth())
	}
}

// duration writes a duration; zero, which Options takes for unset, goes by the
// name none.
func (w *optionWriter) duration(name string, d *time.Duration, none string) {
	switch {
	case d == nil:
	case *d == 0:
		w.add(name, named(none))
	default:
		w.add(name, durationCode(*d))
	}
}

func (w *optionWriter) size(name string, n *int64) {
	if n != nil {
		w.add(name, sizeCode(*n))
	}
}

func (w *optionWriter) retries(o *directive.Options) {
	w.flag("Idempotent", o.Idempotent)
	switch {
	case o.Retries == nil:
	case *o.Retries == 0:
		w.add("Retries", named("NoRetries"))
	default:
		w.add("Retries", jen.Lit(*o.Retries))
	}
	if b := o.Backoff; b != nil {
		w.add("Backoff", named("Backoff").Values(
			jen.Id("First").Op(":").Add(durationCode(b.First)),
			jen.Id("Max").Op(":").Add(durationCode(b.Max)),
			jen.Id("Factor").Op(":").Add(floatCode(b.Factor)),
		))
	}
}

func (w *optionWriter) workers(n *directive.Workers) {
	if n == nil {
		return
	}
	w.add("Workers", named("Workers").ValuesFunc(func(g *jen.Group) {
		if n.Min > 0 {
			g.Id("Min").Op(":").Lit(n.Min)
		}
		g.Id("Max").Op(":").Lit(n.Max)
	}))
}

func (w *optionWriter) env(pairs *[]directive.Pair) {
	if pairs == nil || len(*pairs) == 0 {
		return
	}
	sorted := slices.SortedFunc(slices.Values(*pairs), func(a, b directive.Pair) int { return strings.Compare(a.Name, b.Name) })
	text := w.coder.predeclared("string")
	w.add("Env", jen.Map(text.Clone()).Add(text).ValuesFunc(func(g *jen.Group) {
		for _, p := range sorted {
			g.Lit(p.Name).Op(":").Lit(p.Value)
		}
	}))
}

// secrets writes the variables that are filled from secrets, by name.
func (w *optionWriter) secrets(list *[]directive.Secret) {
	if list == nil || len(*list) == 0 {
		return
	}
	sorted := slices.SortedFunc(slices.Values(*list), func(a, b directive.Secret) int { return strings.Compare(a.Name, b.Name) })
	text := w.coder.predeclared("string")
	w.add("Secrets", jen.Map(text.Clone()).Add(text).ValuesFunc(func(g *jen.Group) {
		for _, s := range sorted {
			g.Lit(s.Name).Op(":").Lit(s.Source)
		}
	}))
}

// files writes what is put into the sandbox; the content is in filesVar.
func (w *optionWriter) files(list *[]directive.File) {
	if list == nil || len(*list) == 0 {
		return
	}
	w.add("Files", jen.Index().Add(named("FileMount")).ValuesFunc(func(g *jen.Group) {
		for _, f := range *list {
			g.Values(jen.Id("Remote").Op(":").Lit(path.Clean(f.Remote)), jen.Id("FS").Op(":").Id(w.coder.filesVar), jen.Id("Name").Op(":").Lit(path.Clean(f.Local)))
		}
	}))
}

func (w *optionWriter) volumes(list *[]directive.Volume) {
	if list == nil || len(*list) == 0 {
		return
	}
	w.add("Volumes", jen.Index().Add(named("Volume")).ValuesFunc(func(g *jen.Group) {
		for _, v := range *list {
			g.ValuesFunc(func(g *jen.Group) {
				g.Id("Name").Op(":").Lit(v.Name)
				g.Id("Path").Op(":").Lit(path.Clean(v.Path))
				if v.ReadOnly {
					g.Id("ReadOnly").Op(":").Add(w.coder.truth())
				}
			})
		}
	}))
}

// floatCode writes a number as people do: 2, not 2.0.
func floatCode(f float64) *jen.Statement { return jen.Id(strconv.FormatFloat(f, 'g', -1, 64)) }

// durationCode writes a duration with the largest unit that fits: 90 * time.Second.
func durationCode(d time.Duration) *jen.Statement {
	units := []struct {
		name string
		d    time.Duration
	}{
		{"Hour", time.Hour}, {"Minute", time.Minute}, {"Second", time.Second},
		{"Millisecond", time.Millisecond}, {"Microsecond", time.Microsecond}, {"Nanosecond", time.Nanosecond},
	}
	for _, u := range units {
		if d%u.d != 0 {
			continue
		}
		if d == u.d {
			return jen.Qual("time", u.name)
		}
		return jen.Id(strconv.FormatInt(int64(d/u.d), 10)).Op("*").Qual("time", u.name)
	}
	return jen.Id(strconv.FormatInt(int64(d), 10))
}

// sizeCode writes a size with the largest unit that fits: 512 * sandboxfn.MiB.
func sizeCode(n int64) *jen.Statement {
	units := []struct {
		name  string
		shift int
	}{{"GiB", 30}, {"MiB", 20}, {"KiB", 10}}
	for _, u := range units {
		if n == 1<<u.shift {
			return jen.Qual(sandboxfnPath, u.name)
		}
		if n%(1<<u.shift) == 0 {
			return jen.Id(strconv.FormatInt(n>>u.shift, 10)).Op("*").Qual(sandboxfnPath, u.name)
		}
	}
	return jen.Id(strconv.FormatInt(n, 10))
}
