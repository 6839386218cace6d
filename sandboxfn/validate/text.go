package validate

import (
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-playground/validator/v10"
)

// texts say in words what the common rules ask for. %s is the rule's parameter.
var texts = map[string]string{
	"required":   "is required",
	"eq":         "must be %s",
	"ne":         "must not be %s",
	"oneof":      "must be one of %s",
	"contains":   "must contain %q",
	"excludes":   "must not contain %q",
	"startswith": "must start with %q",
	"endswith":   "must end with %q",
	"unique":     "must not hold a value twice",
	"email":      "must be an e-mail address",
	"url":        "must be a URL",
	"uri":        "must be a URI",
	"uuid":       "must be a UUID",
	"hostname":   "must be a host name",
	"ip":         "must be an IP address",
	"cidr":       "must be a network in CIDR notation",
	"ascii":      "must be ASCII",
	"lowercase":  "must be lower case",
	"uppercase":  "must be upper case",
	"base64":     "must be base64",
	"json":       "must be JSON",
}

// bounds say in words what rules of order ask for.
var bounds = map[string]string{
	"min": "at least", "max": "at most", "len": "exactly",
	"gt": "more than", "gte": "at least", "lt": "less than", "lte": "at most",
}

func text(b validator.FieldError) string {
	v := reflect.ValueOf(b.Value())
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if bound, ok := bounds[b.Tag()]; ok && v.IsValid() {
		return bounded(bound, b.Param(), v)
	}
	t, ok := texts[b.Tag()]
	switch {
	case !ok:
		t = "breaks the rule " + b.Tag()
	case strings.Contains(t, "%"):
		t = fmt.Sprintf(t, b.Param())
	}
	if s := shown(v); s != "" && b.Tag() != "required" {
		t += ", is " + s
	}
	return t
}

// bounded is the text of a rule of order: for the value of numbers, for the
// length of the rest.
func bounded(bound, limit string, v reflect.Value) string {
	unit, size := "elements", 0
	switch v.Kind() {
	case reflect.String:
		unit, size = "characters", utf8.RuneCountInString(v.String())
	case reflect.Slice, reflect.Map, reflect.Array:
		size = v.Len()
	default:
		return fmt.Sprintf("must be %s %s, is %s", bound, limit, shown(v))
	}
	if limit == "1" {
		unit = strings.TrimSuffix(unit, "s")
	}
	return fmt.Sprintf("must have %s %s %s, has %d", bound, limit, unit, size)
}

// maxShown bounds how much of a text an error shows, in bytes.
const maxShown = 40

// shown is a value as an error shows it; empty for what is too big for that.
func shown(v reflect.Value) string {
	if !v.IsValid() {
		return "nil"
	}
	switch v.Kind() {
	case reflect.String:
		if s := v.String(); len(s) <= maxShown {
			return fmt.Sprintf("%q", s)
		}
		return ""
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64:
		return fmt.Sprint(v.Interface())
	}
	if t, ok := v.Interface().(time.Time); ok {
		return t.Format(time.RFC3339)
	}
	return ""
}
