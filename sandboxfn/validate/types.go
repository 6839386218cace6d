package validate

import (
	"reflect"
	"sync"
)

// facts are what is known of a type.
type facts struct {
	asks      bool // it, or something inside, has a Validate method
	recursive bool // it can contain itself
}

var known sync.Map // reflect.Type to facts

func factsOf(t reflect.Type) facts {
	if f, ok := known.Load(t); ok {
		return f.(facts)
	}
	f := facts{asks: reaches(t, map[reflect.Type]bool{}), recursive: cyclic(t, map[reflect.Type]int{})}
	known.Store(t, f)
	return f
}

func asks(t reflect.Type) bool { return factsOf(t).asks }

// parts are the types of what a value of type t holds.
func parts(t reflect.Type) (ts []reflect.Type) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return []reflect.Type{t.Elem()}
	case reflect.Map:
		return []reflect.Type{t.Key(), t.Elem()}
	case reflect.Struct:
		for i := range t.NumField() {
			ts = append(ts, t.Field(i).Type)
		}
	}
	return ts
}

// reaches reports whether t or something inside has a Validate method.
func reaches(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	if t.Kind() != reflect.Interface && (t.Implements(validatorType) || reflect.PointerTo(t).Implements(validatorType)) {
		return true
	}
	for _, p := range parts(t) {
		if reaches(p, seen) {
			return true
		}
	}
	return false
}

// cyclic reports whether a cycle of types is reachable from t. A type is marked
// 1 while it is being looked at, 2 when it is known to lead to none.
func cyclic(t reflect.Type, marks map[reflect.Type]int) bool {
	switch marks[t] {
	case 1:
		return true
	case 2:
		return false
	}
	marks[t] = 1
	for _, p := range parts(t) {
		if cyclic(p, marks) {
			return true
		}
	}
	marks[t] = 2
	return false
}

// endless reports whether v is nested so deep that it must contain itself.
func endless(v reflect.Value) bool {
	return factsOf(v.Type()).recursive && tooDeep(v, 0)
}

func tooDeep(v reflect.Value, depth int) bool {
	if depth > maxDepth {
		return true
	}
	switch v.Kind() {
	case reflect.Pointer:
		return !v.IsNil() && tooDeep(v.Elem(), depth+1)
	case reflect.Slice, reflect.Array:
		if len(parts(v.Type().Elem())) == 0 {
			return false
		}
		for i := range v.Len() {
			if tooDeep(v.Index(i), depth+1) {
				return true
			}
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			if tooDeep(it.Value(), depth+1) {
				return true
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if tooDeep(v.Field(i), depth+1) {
				return true
			}
		}
	}
	return false
}
