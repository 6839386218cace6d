package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Types of arguments.
const (
	typeString  = "string"
	typeInteger = "integer" // of 64 bits
	typeFloat   = "float"
	typeBoolean = "boolean"
)

// Arg is one argument of a command.
type Arg struct {
	Name        string `json:"name"`
	Type        string `json:"type"` // string, integer, float or boolean
	Required    bool   `json:"required"`
	Default     any    `json:"default,omitempty"` // of the type; nil: none
	Description string `json:"description"`
}

// checkArgs refuses lists that cannot be told apart by name.
func checkArgs(args []Arg) error {
	seen := map[string]bool{}
	for _, a := range args {
		if seen[a.Name] {
			return fmt.Errorf("two arguments are called %s", a.Name)
		}
		seen[a.Name] = true
	}
	return nil
}

func badArgument(format string, args ...any) error {
	return errdefs.New("E3014", "", fmt.Sprintf(format, args...))
}

// bind checks given against args. It returns a string, an int64, a float64 or a
// bool for each argument that has a value; null is no value. What is wrong is
// E3014, which names the argument and never shows a value.
func bind(args []Arg, given map[string]json.RawMessage) (map[string]any, error) {
	values := make(map[string]any, len(args))
	for _, a := range args {
		raw, ok := given[a.Name]
		switch {
		case ok && string(raw) != "null":
			v, ok := a.value(raw)
			if !ok {
				return nil, badArgument("argument %s is not %s", a.Name, article(a.Type))
			}
			values[a.Name] = v
		case a.Required:
			return nil, badArgument("argument %s (%s) is missing", a.Name, a.Type)
		case a.Default != nil:
			values[a.Name] = a.Default
		}
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !slices.ContainsFunc(args, func(a Arg) bool { return a.Name == name }) {
			return nil, badArgument("there is no argument %q; %s", name, have(args))
		}
	}
	return values, nil
}

func have(args []Arg) string {
	if len(args) == 0 {
		return "the command takes none"
	}
	var list []string
	for _, a := range args {
		list = append(list, a.Name)
	}
	return "there are " + strings.Join(list, ", ")
}

func article(typ string) string {
	if typ == typeInteger {
		return "an integer of 64 bits"
	}
	return "a " + typ
}

// value reads one JSON value. Text stands for a value of any type, as it does on
// command lines.
func (a Arg) value(raw json.RawMessage) (any, bool) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return nil, false
	}
	switch v := v.(type) {
	case string:
		return a.parse(v)
	case json.Number:
		if a.Type == typeBoolean {
			return nil, false
		}
		return a.parse(v.String())
	case bool:
		switch a.Type {
		case typeBoolean:
			return v, true
		case typeString:
			return strconv.FormatBool(v), true
		}
	}
	return nil, false
}

// parse reads the text of a value.
func (a Arg) parse(text string) (any, bool) {
	switch a.Type {
	case typeString:
		return text, strings.IndexByte(text, 0) < 0
	case typeInteger:
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n, true
		}
		// 1e3 and 2.0 are integers too, as far as a float holds them exactly.
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
			return nil, false
		}
		return int64(f), true
	case typeFloat:
		f, err := strconv.ParseFloat(text, 64)
		return f, err == nil && !math.IsNaN(f) && !math.IsInf(f, 0)
	case typeBoolean:
		switch strings.ToLower(text) {
		case "true", "yes", "1":
			return true, true
		case "false", "no", "0":
			return false, true
		}
	}
	return nil, false
}

// text is a bound value as (a part of) an argument of a program.
func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case bool:
		return strconv.FormatBool(v)
	}
	return ""
}
