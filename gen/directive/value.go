package directive

import (
	"errors"
	"go/doc"
	"go/token"
	"math"
	"math/big"
	"net/netip"
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
	var value any
	ok := true
	switch f.is {
	case "flag":
		value = true
	case "duration":
		value, ok = parsed(time.ParseDuration(a.Value))
	case "size":
		value, ok = parseSize(a.Value)
	case "int":
		value, ok = parsed(strconv.Atoi(a.Value))
	case "number":
		var n float64
		n, ok = parsed(strconv.ParseFloat(a.Value, 64))
		ok = ok && !math.IsNaN(n) && !math.IsInf(n, 0)
		value = n
	case "backoff":
		value, ok = parseBackoff(a.Value)
	case "workers":
		value, ok = parseWorkers(a.Value)
	case "pairs":
		return d.pairs(a)
	case "network":
		return d.network(a)
	default:
		value = a.Value
	}
	if !ok {
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

// pairs appends environment variables.
func (d *decoder) pairs(a *Arg) bool {
	if d.options.Env == nil {
		d.options.Env = new([]Pair)
	}
	if a.Value == "" {
		return false
	}
	for _, e := range a.Elements {
		end := e.Pos + token.Pos(len(e.Text))
		name, value, ok := strings.Cut(e.Text, "=")
		p := Pair{Name: name, Value: value}
		switch first, twice := d.env[name]; {
		case !ok || validate().Struct(p) != nil:
			d.notA(fields["env"], e.Text, e.Pos, end)
		case strings.HasPrefix(name, "SANDBOX_"):
			d.fail(e.Pos, end, "G013", "option env: "+show(name)+" is reserved; names that start with SANDBOX_ belong to the sandbox", nil)
		case twice:
			d.fail(e.Pos, end, "G011", "option env."+name+" is set twice; first at "+d.locate(first), nil)
		default:
			d.env[name] = e.Pos
			*d.options.Env = append(*d.options.Env, p)
		}
	}
	return true
}

// words are the networks that are not lists.
var words = []string{"all", "none", "loopback", "host"}

// isHostList reports whether n is a list that another can be appended to.
func isHostList(n []string) bool {
	return len(n) > 0 && !slices.Contains(words, n[0])
}

// network appends to the list of what can be reached.
func (d *decoder) network(a *Arg) bool {
	if d.options.Network == nil {
		d.options.Network = new([]string)
	}
	if a.Value == "" {
		return false
	}
	for _, e := range a.Elements {
		word := slices.Contains(words, e.Text)
		alone := len(*d.options.Network) == 0 && len(a.Elements) == 1
		mixed := len(*d.options.Network) > 0 && !isHostList(*d.options.Network)
		if word && !alone || mixed || !word && !isHost(e.Text) {
			d.notA(fields["network"], e.Text, e.Pos, e.Pos+token.Pos(len(e.Text)))
			continue
		}
		*d.options.Network = append(*d.options.Network, e.Text)
	}
	return true
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
	hostForm     = regexp.MustCompile(`^(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?$`)
)

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
	text("text", printable)
	_ = v.RegisterValidation("envname", func(fl validator.FieldLevel) bool { return envForm.MatchString(fl.Field().String()) })
	_ = v.RegisterValidation("network", func(fl validator.FieldLevel) bool { return true }) // element by element, when decoded
	return v
})

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// parsed drops the text of err: messages say what was expected instead.
func parsed[T any](v T, err error) (T, bool) { return v, err == nil }

var units = []struct {
	name string
	size int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
}

var decimal = regexp.MustCompile(`^[0-9]{1,18}(\.[0-9]{1,9})?$`)

// parseSize reads a size with a unit; the result must be a whole number of
// bytes.
func parseSize(s string) (int64, bool) {
	for _, u := range units {
		number, ok := strings.CutSuffix(s, u.name)
		if !ok || !decimal.MatchString(number) {
			continue
		}
		r, ok := new(big.Rat).SetString(number)
		if !ok {
			return 0, false
		}
		r.Mul(r, new(big.Rat).SetInt64(u.size))
		if !r.IsInt() || !r.Num().IsInt64() {
			return 0, false
		}
		return r.Num().Int64(), true
	}
	return 0, false
}

// parseBackoff reads FIRST..MAX[*FACTOR].
func parseBackoff(s string) (Backoff, bool) {
	b := Backoff{Factor: 2}
	span, factor, hasFactor := strings.Cut(s, "*")
	first, last, ok := strings.Cut(span, "..")
	if !ok {
		return b, false
	}
	var err error
	if hasFactor {
		b.Factor, err = strconv.ParseFloat(factor, 64)
		ok = err == nil && !math.IsNaN(b.Factor) && !math.IsInf(b.Factor, 0)
	}
	var okFirst, okLast bool
	b.First, okFirst = parsed(time.ParseDuration(first))
	b.Max, okLast = parsed(time.ParseDuration(last))
	return b, ok && okFirst && okLast
}

// parseWorkers reads MAX or MIN..MAX.
func parseWorkers(s string) (Workers, bool) {
	low, high, span := strings.Cut(s, "..")
	if !span {
		low, high = "0", s
	}
	from, okFrom := parsed(strconv.Atoi(low))
	to, okTo := parsed(strconv.Atoi(high))
	return Workers{Min: from, Max: to}, okFrom && okTo
}

// isHost accepts host, host:port, address, [address]:port and CIDR.
func isHost(s string) bool {
	if _, err := netip.ParsePrefix(s); err == nil {
		return true
	}
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	if _, err := netip.ParseAddrPort(s); err == nil {
		return true
	}
	host, port, hasPort := strings.Cut(s, ":")
	if hasPort {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return false
		}
	}
	return len(host) <= 253 && hostForm.MatchString(host)
}
