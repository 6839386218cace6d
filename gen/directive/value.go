package directive

import (
	"cmp"
	"errors"
	"go/doc"
	"go/token"
	"math"
	"math/big"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/go-playground/validator/v10"

	"github.com/agent-sandbox/sandbox-go/internal/netrule"
)

// notA says what is wrong with a value that is not of an option's type.
var notA = map[string]string{
	"duration": "is not a duration; write a unit, for example 5s",
	"size":     "is not a size; write a unit, for example 512MiB",
	"int":      "is not a whole number",
	"number":   "is not a number",
	"backoff":  "is not a backoff; write FIRST..MAX or FIRST..MAX*FACTOR, for example 100ms..10s*2",
	"workers":  "is not a number of workers; write MAX or MIN..MAX, for example 0..16",
	"log":      "is not one of forward, slog, discard",
	"codec":    "is not one of cbor, json",
	"nested":   "is not one of caller, local, refuse",
	"image":    "is not a reference to an image; write NAME[:TAG][@DIGEST], for example ghcr.io/team/torch:2",
	"gpu":      "is not a kind of GPU; write TYPE or TYPE:COUNT, for example A10 or A10:2",
	"secrets":  "is not NAME or NAME=SOURCE",
	"files":    "is not LOCAL:REMOTE with an absolute REMOTE",
	"volumes":  "is not NAME:PATH or NAME:PATH:ro with an absolute PATH",
	"names":    "is not the name of a parameter",
	"ident":    "is not a name a Go declaration can have",
	"id":       "is not a wire id; use letters, digits and the characters . _ / -",
	"provider": "is not the name of a provider; use lower-case letters, digits and -",
	"text":     "holds characters that can't be printed",
	"abspath":  "is not an absolute path",
	"pairs":    "is not NAME=text",
	"network":  "is not a network; write all, none, loopback, host, or a list of host[:port] and CIDR",
}

// set decodes the value of a into the field. It reports whether there is
// something to validate.
func (d *decoder) set(f field, a *Arg) bool {
	if slices.Contains(lists, f.is) {
		return d.list(f, a)
	}
	var value any
	var err error
	switch f.is {
	case "flag":
		value = true
	case "duration":
		value, err = parseDuration(a.Value)
	case "size":
		value, err = parseSize(a.Value)
	case "int":
		value, err = parseInt(a.Value)
	case "number":
		value, err = parseNumber(a.Value)
	case "backoff":
		value, err = parseBackoff(a.Value)
	case "workers":
		value, err = parseWorkers(a.Value)
	default:
		value = a.Value
	}
	switch {
	case errors.Is(err, errLarge):
		d.fail(a.ValuePos, a.End, "G014", "option "+f.key+": "+a.Value+" is too large", nil)
		return false
	case err != nil:
		d.notA(f, a.Value, a.ValuePos, a.End)
		return false
	}
	to := reflect.ValueOf(d.options).Elem().Field(f.index)
	to.Set(reflect.New(to.Type().Elem()))
	to.Elem().Set(reflect.ValueOf(value))
	return true
}

func (d *decoder) notA(f field, text string, pos, end token.Pos) {
	d.fail(pos, end, "G013", "option "+f.key+": "+show(text)+" "+notA[f.is], nil)
}

// lists are the types of options that may repeat and append.
var lists = []string{"pairs", "secrets", "files", "volumes", "names", "network"}

// list appends the elements of a to the field. It reports whether there is
// something to validate.
func (d *decoder) list(f field, a *Arg) bool {
	to := reflect.ValueOf(d.options).Elem().Field(f.index)
	if to.IsNil() {
		to.Set(reflect.New(to.Type().Elem()))
	}
	if a.Value == "" {
		return false
	}
	for _, e := range a.Elements {
		switch f.is {
		case "pairs":
			d.pair(f, e)
		case "secrets":
			d.secret(f, e)
		case "files":
			d.file(f, e)
		case "volumes":
			d.volume(f, e)
		case "names":
			d.name(f, e)
		case "network":
			d.network(f, e, len(a.Elements))
		}
	}
	return true
}

// first reports whether an element names something that none before it does.
func (d *decoder) first(f field, e Element, what string) bool {
	id := f.key + "." + what
	if at, twice := d.seen[id]; twice {
		d.fail(e.Pos, e.end(), "G011", "option "+id+" is set twice; first at "+d.locate(at), nil)
		return false
	}
	d.seen[id] = e.Pos
	return true
}

// end is just after an element that has no escapes.
func (e Element) end() token.Pos { return e.Pos + token.Pos(len(e.Text)) }

// reserved refuses names of variables that are the sandbox's own.
func (d *decoder) reserved(f field, e Element, name string) bool {
	if !strings.HasPrefix(name, "SANDBOX_") {
		return false
	}
	d.fail(e.Pos, e.end(), "G013", "option "+f.key+": "+show(name)+" is reserved; names that start with SANDBOX_ belong to the sandbox", nil)
	return true
}

// pair appends an environment variable.
func (d *decoder) pair(f field, e Element) {
	name, value, ok := strings.Cut(e.Text, "=")
	p := Pair{Name: name, Value: value}
	switch {
	case !ok || validate().Struct(p) != nil:
		d.notA(f, e.Text, e.Pos, e.end())
	case d.reserved(f, e, name):
	case d.first(f, e, name):
		*d.options.Env = append(*d.options.Env, p)
	}
}

// secret appends a variable that is filled from a secret.
func (d *decoder) secret(f field, e Element) {
	name, source, given := strings.Cut(e.Text, "=")
	switch {
	case !envForm.MatchString(name) || given && (source == "" || !printable(source)):
		d.notA(f, e.Text, e.Pos, e.end())
	case d.reserved(f, e, name):
	case d.first(f, e, name):
		*d.options.Secrets = append(*d.options.Secrets, Secret{Name: name, Source: source, Pos: e.Pos})
	}
}

// file appends a file; whether it is there is for those who know the folder.
func (d *decoder) file(f field, e Element) {
	i := strings.LastIndex(e.Text, ":")
	if i <= 0 || !absolute(e.Text[i+1:]) || !printable(e.Text) {
		d.notA(f, e.Text, e.Pos, e.end())
		return
	}
	local, remote := e.Text[:i], e.Text[i+1:]
	if d.first(f, e, path.Clean(remote)) {
		*d.options.Files = append(*d.options.Files, File{Local: local, Remote: remote, Pos: e.Pos, End: e.Pos + token.Pos(len(local))})
	}
}

// volume appends a volume.
func (d *decoder) volume(f field, e Element) {
	name, where, ok := strings.Cut(e.Text, ":")
	where, readOnly := strings.CutSuffix(where, ":ro")
	if !ok || !volumeForm.MatchString(name) || !absolute(where) || !printable(where) || strings.Contains(where, ":") {
		d.notA(f, e.Text, e.Pos, e.end())
		return
	}
	if d.first(f, e, path.Clean(where)) {
		*d.options.Volumes = append(*d.options.Volumes, Volume{Name: name, Path: where, ReadOnly: readOnly, Pos: e.Pos, End: e.end()})
	}
}

// name appends the name of a parameter.
func (d *decoder) name(f field, e Element) {
	switch {
	case !token.IsIdentifier(e.Text) || e.Text == "_":
		d.notA(f, e.Text, e.Pos, e.end())
	case d.first(f, e, e.Text):
		to := reflect.ValueOf(d.options).Elem().Field(f.index).Interface().(*[]Name)
		*to = append(*to, Name(e))
	}
}

// words are the networks that are not lists.
var words = []string{"all", "none", "loopback", "host"}

// isHostList reports whether n is a list that another can be appended to.
func isHostList(n []string) bool {
	return len(n) > 0 && !slices.Contains(words, n[0])
}

// network appends to the list of what can be reached; together is the number
// of elements that are given at once.
func (d *decoder) network(f field, e Element, together int) {
	list := d.options.Network
	near := ""
	if isHost(e.Text) && !strings.ContainsAny(e.Text, ".:/") {
		near = nearest(strings.ToLower(e.Text), words)
	}
	switch {
	case slices.Contains(words, e.Text):
		if len(*list) > 0 || together > 1 {
			d.fail(e.Pos, e.end(), "G013", "option network: "+e.Text+" stands alone, not in a list", nil)
			return
		}
	case len(*list) > 0 && !isHostList(*list):
		d.fail(e.Pos, e.end(), "G013", "option network: "+(*list)[0]+" stands alone, not in a list", nil)
		return
	case near != "":
		d.fail(e.Pos, e.end(), "G013", "option network: "+show(e.Text)+" is not a network; did you mean "+near+"? (a host of this name is written "+e.Text+".)",
			&Fix{Pos: e.Pos, End: e.end(), Text: near})
		return
	case !isHost(e.Text):
		d.notA(f, e.Text, e.Pos, e.end())
		return
	}
	*list = append(*list, e.Text)
}

// validate checks what was decoded against the tags of Options.
func (d *decoder) validate() {
	var failed validator.ValidationErrors
	if !errors.As(validate().Struct(d.options), &failed) {
		return
	}
	t := reflect.TypeFor[Options]()
	seen := make(map[string]bool)
	for _, e := range failed {
		// Options.Backoff.First: the second part names the option.
		name := strings.Split(e.StructNamespace(), ".")[1]
		name, _, _ = strings.Cut(name, "[")
		sf, _ := t.FieldByName(name)
		f := fields[sf.Tag.Get("option")]
		a, ok := d.values[f.key]
		if !ok || seen[f.key] {
			continue // reported when it was decoded
		}
		seen[f.key] = true
		reflect.ValueOf(d.options).Elem().FieldByName(name).SetZero() // what follows sees only legal values
		if f.rangeText != "" {
			d.fail(a.ValuePos, a.End, "G014", "option "+f.key+": "+a.Value+" is out of range "+f.rangeText, nil)
			continue
		}
		d.notA(f, a.Value, a.ValuePos, a.End)
	}
}

var (
	idForm       = regexp.MustCompile(`^[A-Za-z0-9._/-]+$`)
	providerForm = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
	envForm      = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	volumeForm   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	gpuForm      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}(:[1-9][0-9]{0,3})?$`)
	// The grammar of references of the OCI distribution specification.
	imageForm = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*(:[0-9]+)?/)?` +
		`[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*` +
		`(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[A-Za-z][A-Za-z0-9]*([-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?$`)
)

// IsVariable reports whether name can be that of a variable that a sandbox gets.
func IsVariable(name string) bool {
	return envForm.MatchString(name) && !strings.HasPrefix(name, "SANDBOX_")
}

// validate returns the validator that knows the tags of Options. An empty text
// passes every rule of ours: it takes back what an outer level says.
var validate = sync.OnceValue(func() *validator.Validate {
	v := validator.New()
	text := func(name string, ok func(string) bool) {
		// The only errors are an empty name and a nil function.
		_ = v.RegisterValidation(name, func(fl validator.FieldLevel) bool {
			return fl.Field().String() == "" || ok(fl.Field().String())
		})
	}
	text("ident", func(s string) bool {
		return token.IsIdentifier(s) && s != "_" && s != "init" && s != "main" && !doc.IsPredeclared(s)
	})
	text("id", idForm.MatchString)
	text("provider", providerForm.MatchString)
	text("abspath", func(s string) bool { return path.IsAbs(s) && printable(s) })
	text("image", imageForm.MatchString)
	text("gpu", gpuForm.MatchString)
	text("text", printable)
	_ = v.RegisterValidation("envname", func(fl validator.FieldLevel) bool { return envForm.MatchString(fl.Field().String()) })
	return v
})

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// absolute reports whether s is an absolute path in a sandbox that names
// something in it.
func absolute(s string) bool { return path.IsAbs(s) && path.Clean(s) != "/" }

var (
	errForm  = errors.New("not of the form")
	errLarge = errors.New("too large")
)

// units of sizes.
var units = []struct {
	name string
	size int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
}

var (
	decimal      = regexp.MustCompile(`^[0-9]{1,40}(\.[0-9]{1,9})?$`)
	durationForm = regexp.MustCompile(`^[-+]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`)
)

// parseDuration reads a duration of Go.
func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	switch {
	case err == nil:
		return d, nil
	case durationForm.MatchString(s):
		return 0, errLarge
	}
	return 0, errForm
}

// parseInt reads a whole number.
func parseInt(s string) (int, error) {
	n, err := strconv.Atoi(s)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, errLarge
	case err != nil:
		return 0, errForm
	}
	return n, nil
}

// parseNumber reads a number.
func parseNumber(s string) (float64, error) {
	n, err := strconv.ParseFloat(s, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, errLarge
	case err != nil || math.IsNaN(n) || math.IsInf(n, 0):
		return 0, errForm
	}
	return n, nil
}

// parseSize reads a size with a unit; the result must be a whole number of
// bytes.
func parseSize(s string) (int64, error) {
	for _, u := range units {
		number, ok := strings.CutSuffix(s, u.name)
		if !ok || !decimal.MatchString(number) {
			continue
		}
		r, ok := new(big.Rat).SetString(number)
		if !ok {
			return 0, errForm
		}
		r.Mul(r, new(big.Rat).SetInt64(u.size))
		switch {
		case !r.IsInt():
			return 0, errForm
		case !r.Num().IsInt64():
			return 0, errLarge
		}
		return r.Num().Int64(), nil
	}
	return 0, errForm
}

// parseBackoff reads FIRST..MAX[*FACTOR].
func parseBackoff(s string) (Backoff, error) {
	b := Backoff{Factor: 2}
	span, factor, hasFactor := strings.Cut(s, "*")
	first, last, ok := strings.Cut(span, "..")
	if !ok {
		return b, errForm
	}
	var err1, err2, err3 error
	b.First, err1 = parseDuration(first)
	b.Max, err2 = parseDuration(last)
	if hasFactor {
		b.Factor, err3 = parseNumber(factor)
	}
	return b, worst(err1, err2, err3)
}

// parseWorkers reads MAX or MIN..MAX.
func parseWorkers(s string) (Workers, error) {
	low, high, span := strings.Cut(s, "..")
	if !span {
		low, high = "0", s
	}
	from, err1 := parseInt(low)
	to, err2 := parseInt(high)
	return Workers{Min: from, Max: to}, worst(err1, err2)
}

// worst returns the error that matters most: a wrong form, then a number that
// is too large.
func worst(errs ...error) error {
	var large error
	for _, err := range errs {
		if errors.Is(err, errForm) {
			return err
		}
		large = cmp.Or(large, err)
	}
	return large
}

// isHost accepts the rules of package netrule.
func isHost(s string) bool {
	_, err := netrule.Parse(s)
	return err == nil
}
