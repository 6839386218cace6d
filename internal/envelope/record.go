package envelope

import (
	"encoding"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxRecord bounds the encoded form of a log record, in bytes: attributes beyond
// it are left out and counted, and a single text is cut at half of SegmentMin.
const MaxRecord = 256 << 10

const maxLogText = SegmentMin / 2

// cutKey is the key of the attribute that counts what was left out.
const cutKey = "attrs_dropped"

// Kinds of values of log records.
const (
	logAny      = 0 // text, JSON or empty
	logBool     = 1
	logDuration = 2
	logFloat    = 3
	logInt      = 4
	logText     = 5
	logTime     = 6
	logUint     = 7
	logGroup    = 8
	logError    = 9
	logBytes    = 10
)

// EncodeRecord encodes a log record. LogValuers are resolved; values of types
// that slog has no kind for travel as the text and the JSON that slog's own
// handlers would print. base is subtracted from where the record was made, so
// that another process of the same executable finds the place.
func EncodeRecord(r slog.Record, base uintptr, errs *Errors) []byte {
	e := newEncoder(errs, math.MaxInt64)
	e.buf = appendHead(e.buf, majorArray, 5)
	e.logTime(r.Time)
	e.buf = appendInt(e.buf, int64(r.Level))
	e.buf = appendInt(e.buf, placeFrom(r.PC, base))
	e.logText(r.Message)
	var attrs []slog.Attr
	r.Attrs(func(a slog.Attr) bool {
		attrs = append(attrs, a)
		return true
	})
	if left := e.logAttrs(attrs); left > 0 {
		// The head has room for another element.
		e.logAttr(slog.Int(cutKey, left))
	}
	return e.buf
}

// EncodeDropped encodes that n records have been dropped.
func EncodeDropped(n int) []byte { return appendHead(nil, majorUint, uint64(n)) }

// DecodeDropped reports whether b says that records have been dropped, and how
// many.
func DecodeDropped(b []byte) (n int, ok bool) {
	if len(b) == 0 || b[0]>>5 != majorUint {
		return 0, false
	}
	r := reader{b: b}
	u, err := r.uint()
	return int(min(u, math.MaxInt32)), err == nil
}

func placeFrom(pc, base uintptr) int64 {
	if pc == 0 {
		return 0
	}
	return int64(pc) - int64(base)
}

// logAttrs returns how many of attrs had no room; one more than those that had
// is then expected.
func (e *encoder) logAttrs(attrs []slog.Attr) (left int) {
	head := len(e.buf)
	e.buf = longHead(e.buf, majorArray, 0)
	n := 0
	for _, a := range attrs {
		before := len(e.buf)
		e.logAttr(a)
		if len(e.buf) > MaxRecord-1024 {
			e.buf = e.buf[:before]
			left = len(attrs) - n
			break
		}
		n++
	}
	size := n
	if left > 0 {
		size++
	}
	binary.BigEndian.PutUint64(e.buf[head+1:], uint64(size))
	return left
}

func (e *encoder) logAttr(a slog.Attr) {
	e.buf = appendHead(e.buf, majorArray, 3)
	e.logText(a.Key)
	v := a.Value.Resolve()
	kind := func(k byte) { e.buf = append(e.buf, majorUint<<5|k) }
	switch v.Kind() {
	case slog.KindBool:
		kind(logBool)
		c := byte(wireFalse)
		if v.Bool() {
			c = wireTrue
		}
		e.buf = append(e.buf, c)
	case slog.KindDuration:
		kind(logDuration)
		e.buf = appendInt(e.buf, int64(v.Duration()))
	case slog.KindFloat64:
		kind(logFloat)
		e.buf = binary.BigEndian.AppendUint64(append(e.buf, wireFloat64), math.Float64bits(v.Float64()))
	case slog.KindInt64:
		kind(logInt)
		e.buf = appendInt(e.buf, v.Int64())
	case slog.KindString:
		kind(logText)
		e.logText(v.String())
	case slog.KindTime:
		kind(logTime)
		e.logTime(v.Time())
	case slog.KindUint64:
		kind(logUint)
		e.buf = appendHead(e.buf, majorUint, v.Uint64())
	case slog.KindGroup:
		kind(logGroup)
		if e.depth++; e.depth > maxLogDepth {
			e.buf = appendHead(e.buf, majorArray, 0)
		} else if left := e.logAttrs(v.Group()); left > 0 {
			e.logAttr(slog.Int(cutKey, left))
		}
		e.depth--
	default:
		e.logAny(v.Any())
	}
}

// maxLogDepth bounds groups in groups.
const maxLogDepth = 100

func (e *encoder) logTime(t time.Time) {
	e.value(timePlan, reflect.ValueOf(&t).Elem())
}

var timePlan = builtin(reflect.TypeFor[time.Time]())

func (e *encoder) logText(s string) {
	if len(s) > maxLogText {
		n := maxLogText
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n] + "…"
	}
	e.runText(s)
}

func (e *encoder) logAny(v any) {
	if b, ok := v.([]byte); ok && len(b) <= maxLogText {
		e.buf = append(e.buf, majorUint<<5|logBytes)
		encBytes(e, reflect.ValueOf(&b).Elem())
		return
	}
	if err, ok := v.(error); ok && !isNil(v) {
		before, segments := len(e.buf), len(e.segments)
		e.buf = append(e.buf, majorUint<<5|logError)
		if e.error(err) == nil && len(e.segments) == segments && len(e.buf)-before < maxLogText {
			return
		}
		e.buf, e.segments, e.depth = e.buf[:before], e.segments[:segments], 0
	}
	text, js := anyText(v), anyJSON(v)
	e.buf = append(e.buf, majorUint<<5|logAny)
	e.buf = appendHead(e.buf, majorArray, 2)
	e.logText(text)
	if len(js) > maxLogText {
		js = ""
	}
	e.runText(js)
}

func isNil(v any) bool {
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}

// anyText is what slog.TextHandler prints for v.
func anyText(v any) (s string) {
	defer func() {
		if r := recover(); r != nil {
			s = fmt.Sprintf("!PANIC: %v", r)
		}
	}()
	if m, ok := v.(encoding.TextMarshaler); ok {
		b, err := m.MarshalText()
		if err != nil {
			return "!ERROR:" + err.Error()
		}
		return string(b)
	}
	if b, ok := v.([]byte); ok {
		return string(b)
	}
	return fmt.Sprintf("%+v", v)
}

// anyJSON is what slog.JSONHandler prints for v.
func anyJSON(v any) (s string) {
	defer func() {
		if r := recover(); r != nil {
			s = ""
		}
	}()
	if err, ok := v.(error); ok {
		if _, ok := v.(json.Marshaler); !ok {
			v = err.Error()
		}
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if enc.Encode(v) != nil {
		return ""
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Logged is a value of a log record whose type does not travel: it prints as the
// value would, with slog.TextHandler and with slog.JSONHandler.
type Logged struct{ text, json string }

// String is what slog.TextHandler prints for the value.
func (l Logged) String() string { return l.text }

// MarshalText implements [encoding.TextMarshaler].
func (l Logged) MarshalText() ([]byte, error) { return []byte(l.text), nil }

// MarshalJSON is what slog.JSONHandler prints for the value.
func (l Logged) MarshalJSON() ([]byte, error) {
	if l.json == "" || !json.Valid([]byte(l.json)) {
		return json.Marshal(l.text)
	}
	return []byte(l.json), nil
}

// DecodeRecord decodes a log record. A malformed one is E9005.
func DecodeRecord(b []byte, base uintptr, errs *Errors) (slog.Record, error) {
	d := &decoder{reader: reader{b: b}, errors: errs}
	r, err := d.record(base)
	if err == nil {
		err = d.end()
	}
	return r, coded(err, "log record", "")
}

func (d *decoder) record(base uintptr) (r slog.Record, err error) {
	if err = d.array(5); err != nil {
		return r, err
	}
	if err = decTime(d, reflect.ValueOf(&r.Time).Elem()); err != nil {
		return r, err
	}
	level, err := d.int()
	if err != nil {
		return r, err
	}
	r.Level = slog.Level(level)
	place, err := d.int()
	if err != nil {
		return r, err
	}
	if place != 0 && base != 0 {
		r.PC = uintptr(int64(base) + place)
	}
	if r.Message, err = d.runText(); err != nil {
		return r, err
	}
	attrs, err := d.logAttrs()
	r.AddAttrs(attrs...)
	return r, err
}

func (d *decoder) logAttrs() ([]slog.Attr, error) {
	n, err := d.count(majorArray, "attributes", 4)
	if err != nil {
		return nil, err
	}
	if d.depth++; d.depth > maxLogDepth+1 {
		return nil, malformed("nested deeper than %d", maxLogDepth)
	}
	attrs := make([]slog.Attr, n)
	for i := range attrs {
		if attrs[i], err = d.logAttr(); err != nil {
			return nil, err
		}
	}
	d.depth--
	return attrs, nil
}

func (d *decoder) logAttr() (a slog.Attr, err error) {
	if err = d.array(3); err != nil {
		return a, err
	}
	if a.Key, err = d.runText(); err != nil {
		return a, err
	}
	kind, err := d.uint()
	if err != nil {
		return a, err
	}
	switch kind {
	case logBool:
		a.Value, err = logged(d, decBool, slog.BoolValue)
	case logDuration:
		a.Value, err = logged(d, decInt, slog.DurationValue)
	case logFloat:
		a.Value, err = logged(d, decFloat64, slog.Float64Value)
	case logInt:
		a.Value, err = logged(d, decInt, slog.Int64Value)
	case logText:
		a.Value, err = logged(d, decString, slog.StringValue)
	case logTime:
		a.Value, err = logged(d, decTime, slog.TimeValue)
	case logUint:
		a.Value, err = logged(d, decUint, slog.Uint64Value)
	case logGroup:
		var attrs []slog.Attr
		attrs, err = d.logAttrs()
		a.Value = slog.GroupValue(attrs...)
	case logError:
		var e error
		if e, err = d.error(); err == nil && e == nil {
			err = malformed("no error")
		}
		a.Value = slog.AnyValue(e)
	case logBytes:
		a.Value, err = logged(d, decBytes, func(b []byte) slog.Value { return slog.AnyValue(b) })
	case logAny:
		var l Logged
		if err = d.array(2); err == nil {
			if l.text, err = d.runText(); err == nil {
				l.json, err = d.runText()
			}
		}
		a.Value = slog.AnyValue(l)
	default:
		err = malformed("unknown kind %d", kind)
	}
	return a, err
}

func logged[T any](d *decoder, dec func(*decoder, reflect.Value) error, value func(T) slog.Value) (slog.Value, error) {
	var x T
	err := dec(d, reflect.ValueOf(&x).Elem())
	return value(x), err
}
