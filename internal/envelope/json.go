package envelope

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The JSON form of requests and responses holds what the CBOR form holds, for
// people to read and for workers in other languages. A body is written as CBOR
// first, without segments, and turned into JSON as a whole; what arrives is
// turned into CBOR again and decoded as ever. The two forms are told apart by
// their first byte.
//
// Structs and maps are objects, lists and arguments arrays, bytes strings in
// base64. Integers have all their digits, floats as many as bring every bit back
// and always a point or an exponent. What JSON has no form for:
//
//	{"$base64": "…"}      text that is not UTF-8
//	"$base64:…"           the same as a key
//	{"$tag": [n, value]}  a tag of CBOR
//
// A key of the user's that begins with "$" has another one before it. Integers
// and bools are keys in their usual spelling.
const (
	keyBase64 = "$base64"
	keyTag    = "$tag"

	tagRawText = 0x5348 // within the encoder: bytes of text that is not UTF-8
	tagNumber  = 0x5349 // within the decoder: the digits of a number that is no integer
)

// The members of requests and responses in their order in CBOR.
var (
	requestMembers = []string{"timeout_ns", "id", "max_payload", "shared", "meta", "args"}
	resultMembers  = []string{"outcome", "result", "error", "stdout", "stderr"}
	panicMembers   = []string{"outcome", "panic", "stack", "stdout", "stderr"}
)

// timeoutWidth is the room for the timeout of a request, which is filled in when
// the request is sent.
const timeoutWidth = 20

var timeoutAt = len(`{"` + requestMembers[0] + `":`)

// isJSON reports whether a body is in the JSON form. CBOR begins with the head
// of an array.
func isJSON(body []byte) bool { return len(body) > 0 && body[0] == '{' }

// putTimeout is SetTimeout for the JSON form.
func putTimeout(body []byte, ns uint64) {
	text := strconv.AppendUint(make([]byte, 0, timeoutWidth), ns, 10)
	for len(text) < timeoutWidth {
		text = append(text, ' ')
	}
	copy(body[timeoutAt:], text)
}

// requestJSON turns the request in e into JSON. c is the codec of its arguments.
func (e *encoder) requestJSON(c *Codec) (Payload, error) {
	w := jsonWriter{reader: reader{b: e.buf}, out: []byte{'{'}}
	err := w.members(requestMembers, func(i, size int) error {
		switch {
		case i == 0:
			pad := timeoutWidth - size
			w.out = append(w.out, "                    "[:pad]...)
		case i == len(requestMembers)-1 && int64(size) > e.limit:
			name := c.root
			if name == "" {
				name = "the arguments"
			}
			return tooLarge(name+" as JSON", int64(size), e.limit)
		}
		return nil
	})
	if err != nil {
		return Payload{}, coded(err, c.op, "")
	}
	p := Payload{Body: e.buf}
	p.Release()
	return Payload{Body: w.out}, nil
}

// finishJSON turns a finished response into JSON. A result that is too large as
// JSON makes the call fail, or is left out beside an error of the function.
func (r *Response) finishJSON(c Counters) Payload {
	w := jsonWriter{reader: reader{b: r.e.buf}, out: []byte{'{'}}
	var before int // of the result in w.out
	names := resultMembers
	if r.e.buf[1] == byte(Panicked) {
		names = panicMembers
	}
	tooMuch := int64(0)
	err := w.members(names, func(i, size int) error {
		switch {
		case i == 0:
			w.out = strconv.AppendQuote(w.out[:len(w.out)-size], Outcome(r.e.buf[1]).String())
		case i == 1 && int64(size) > r.e.limit && names[1] == "result":
			tooMuch, before = int64(size), len(w.out)-size
			w.out = append(w.out[:before], "null"...)
		case i == 2 && tooMuch > 0 && size == len("null"): // no error beside it
			return tooLarge("result as JSON", tooMuch, r.e.limit)
		}
		return nil
	})
	if err != nil { // it can be said, at least
		r.Failed(coded(err, r.op, ""))
		r.e.buf = appendHead(r.e.buf, majorUint, c.Stdout)
		r.e.buf = appendHead(r.e.buf, majorUint, c.Stderr)
		w = jsonWriter{reader: reader{b: r.e.buf}, out: []byte{'{'}}
		w.members(resultMembers, func(i, size int) error {
			if i == 0 {
				w.out = strconv.AppendQuote(w.out[:len(w.out)-size], Failed.String())
			}
			return nil
		})
	}
	return Payload{Body: w.out}
}

// jsonWriter turns CBOR that the encoder has made into JSON.
type jsonWriter struct {
	reader
	out []byte
}

// members writes the elements of an array as members of an object, which has
// been begun. each is told the size of each.
func (w *jsonWriter) members(names []string, each func(i, size int) error) error {
	if err := w.array(uint64(len(names))); err != nil {
		return err
	}
	for i, name := range names {
		if i > 0 {
			w.out = append(w.out, ',')
		}
		w.out = append(strconv.AppendQuote(w.out, name), ':')
		before := len(w.out)
		if err := w.value(); err != nil {
			return at(err, "."+name)
		}
		if err := each(i, len(w.out)-before); err != nil {
			return err
		}
	}
	w.out = append(w.out, '}')
	return nil
}

func (w *jsonWriter) value() error {
	c, err := w.peek()
	if err != nil {
		return err
	}
	switch c {
	case wireNull:
		w.pos++
		w.out = append(w.out, "null"...)
		return nil
	case wireTrue, wireFalse:
		w.pos++
		w.out = strconv.AppendBool(w.out, c == wireTrue)
		return nil
	case wireFloat32, wireFloat64:
		return w.float(c)
	}
	major, n, err := w.head()
	if err != nil {
		return err
	}
	switch major {
	case majorUint:
		w.out = strconv.AppendUint(w.out, n, 10)
	case majorInt:
		w.out = strconv.AppendInt(w.out, ^int64(n), 10)
	case majorBytes:
		return w.base64(`"`, n, `"`)
	case majorText:
		return w.text("", n)
	case majorArray:
		return w.list(n)
	case majorMap:
		return w.object(n)
	case majorTag:
		return w.tag(n)
	}
	return nil
}

func (w *jsonWriter) float(c byte) error {
	w.pos++
	size := 4
	if c == wireFloat64 {
		size = 8
	}
	b, err := w.run(uint64(size))
	if err != nil {
		return err
	}
	f := float64(math.Float32frombits(binary.BigEndian.Uint32(b)))
	if size == 8 {
		f = math.Float64frombits(binary.BigEndian.Uint64(b))
	}
	if f != f || math.IsInf(f, 0) {
		return unencodable("%v has no form in JSON", f)
	}
	format := byte('f')
	if a := math.Abs(f); a != 0 && (a < 1e-6 || a >= 1e21) {
		format = 'e'
	}
	before := len(w.out)
	w.out = strconv.AppendFloat(w.out, f, format, -1, 8*size)
	if !slices.ContainsFunc(w.out[before:], func(c byte) bool { return c == '.' || c == 'e' }) {
		w.out = append(w.out, ".0"...)
	}
	return nil
}

func (w *jsonWriter) base64(before string, n uint64, after string) error {
	b, err := w.run(n)
	if err != nil {
		return err
	}
	w.out = append(w.out, before...)
	w.out = base64.StdEncoding.AppendEncode(w.out, b)
	w.out = append(w.out, after...)
	return nil
}

func (w *jsonWriter) text(prefix string, n uint64) error {
	b, err := w.run(n)
	if err != nil {
		return err
	}
	if !utf8.Valid(b) {
		return unencodable("text is not UTF-8")
	}
	w.out = append(append(w.out, '"'), prefix...)
	w.out = appendEscaped(w.out, b)
	w.out = append(w.out, '"')
	return nil
}

// appendEscaped appends text as it stands within the quotes of JSON.
func appendEscaped(out, text []byte) []byte {
	const hex = "0123456789abcdef"
	for _, c := range text {
		switch {
		case c == '"' || c == '\\':
			out = append(out, '\\', c)
		case c == '\n':
			out = append(out, `\n`...)
		case c == '\t':
			out = append(out, `\t`...)
		case c == '\r':
			out = append(out, `\r`...)
		case c < ' ' || c == 0x7f:
			out = append(out, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			out = append(out, c)
		}
	}
	return out
}

func (w *jsonWriter) list(n uint64) error {
	w.out = append(w.out, '[')
	for i := range n {
		if i > 0 {
			w.out = append(w.out, ',')
		}
		if err := w.value(); err != nil {
			return at(err, "["+strconv.FormatUint(i, 10)+"]")
		}
	}
	w.out = append(w.out, ']')
	return nil
}

func (w *jsonWriter) object(n uint64) error {
	w.out = append(w.out, '{')
	for i := range n {
		if i > 0 {
			w.out = append(w.out, ',')
		}
		before := len(w.out)
		if err := w.key(); err != nil {
			return at(err, "[key]")
		}
		key := string(w.out[before:])
		w.out = append(w.out, ':')
		if err := w.value(); err != nil {
			return at(err, "["+key+"]")
		}
	}
	w.out = append(w.out, '}')
	return nil
}

func (w *jsonWriter) key() error {
	c, err := w.peek()
	if err != nil {
		return err
	}
	if c == wireTrue || c == wireFalse {
		w.pos++
		w.out = append(strconv.AppendBool(append(w.out, '"'), c == wireTrue), '"')
		return nil
	}
	major, n, err := w.head()
	if err != nil {
		return err
	}
	switch {
	case major == majorUint:
		w.out = append(strconv.AppendUint(append(w.out, '"'), n, 10), '"')
		return nil
	case major == majorInt:
		w.out = append(strconv.AppendInt(append(w.out, '"'), ^int64(n), 10), '"')
		return nil
	case major == majorText:
		prefix := ""
		if w.left() > 0 && n > 0 && w.b[w.pos] == '$' {
			prefix = "$"
		}
		return w.text(prefix, n)
	case major == majorTag && n == tagRawText:
		if n, err = w.expect(majorBytes, "bytes"); err != nil {
			return err
		}
		return w.base64(`"`+keyBase64+`:`, n, `"`)
	}
	return unencodable("a key of a map has no form in JSON")
}

func (w *jsonWriter) tag(n uint64) error {
	if n == tagRawText {
		n, err := w.expect(majorBytes, "bytes")
		if err != nil {
			return err
		}
		return w.base64(`{"`+keyBase64+`":"`, n, `"}`)
	}
	w.out = append(w.out, `{"`+keyTag+`":[`...)
	w.out = append(strconv.AppendUint(w.out, n, 10), ',')
	if err := w.value(); err != nil {
		return err
	}
	w.out = append(w.out, "]}"...)
	return nil
}

// openJSON turns a request or a response in JSON into CBOR that the decoder
// takes when its json flag is set. forms are the lists of members it may have:
// the first member says which, when there are several.
func openJSON(body []byte, forms ...[]string) ([]byte, error) {
	r := jsonReader{b: body}
	parts := map[string][]byte{}
	err := r.object(func(name string) error {
		if _, dup := parts[name]; dup {
			return malformed("duplicate member")
		}
		if !slices.ContainsFunc(forms, func(f []string) bool { return slices.Contains(f, name) }) {
			return malformed("unknown member")
		}
		before := len(r.out)
		if err := r.value(); err != nil {
			return err
		}
		parts[name] = r.out[before:len(r.out):len(r.out)]
		return nil
	})
	if err == nil {
		if r.space(); r.pos < len(r.b) {
			err = malformed("%d bytes too many", len(r.b)-r.pos)
		}
	}
	if err != nil {
		return nil, err
	}
	names, outcome := forms[0], []byte(nil)
	if len(forms) > 1 {
		n := slices.IndexFunc([]Outcome{Returned, Failed, Panicked}, func(o Outcome) bool {
			return string(parts["outcome"]) == string(appendText(nil, o.String()))
		})
		if n < 0 {
			return nil, at(malformed("expected returned, failed or panicked"), ".outcome")
		}
		if Outcome(n) == Panicked {
			names = forms[1]
		}
		outcome = []byte{majorUint<<5 | byte(n)}
	}
	if len(parts) != len(names) {
		return nil, malformed("expected the members %s", strings.Join(names, ", "))
	}
	out := appendHead(make([]byte, 0, len(r.out)+16), majorArray, uint64(len(names)))
	for i, name := range names {
		part, ok := parts[name]
		if !ok {
			return nil, at(malformed("missing"), "."+name)
		}
		if i == 0 && outcome != nil {
			part = outcome
		}
		out = append(out, part...)
	}
	return out, nil
}

// jsonReader turns JSON into CBOR. Numbers take nine bytes and more, so that no
// value is shorter than the decoder expects of it.
type jsonReader struct {
	b     []byte
	pos   int
	out   []byte
	depth int
}

func (r *jsonReader) space() {
	for r.pos < len(r.b) {
		switch r.b[r.pos] {
		case ' ', '\t', '\n', '\r':
			r.pos++
		default:
			return
		}
	}
}

// next skips space and returns the byte after it, which is not consumed; zero at
// the end.
func (r *jsonReader) next() byte {
	if r.space(); r.pos < len(r.b) {
		return r.b[r.pos]
	}
	return 0
}

func (r *jsonReader) take(c byte) error {
	if got := r.next(); got != c || r.pos >= len(r.b) {
		return r.unexpected(strconv.QuoteRune(rune(c)))
	}
	r.pos++
	return nil
}

func (r *jsonReader) unexpected(want string) error {
	if r.pos >= len(r.b) {
		return malformed("ends too early, expected %s", want)
	}
	return malformed("expected %s at byte %d, found %q", want, r.pos, r.b[r.pos])
}

func (r *jsonReader) value() error {
	// Pointers to what can be nil are in lists of their own.
	if r.depth++; r.depth > 2*maxDepth+16 {
		return malformed("nested deeper than %d", maxDepth)
	}
	defer func() { r.depth-- }()
	switch c := r.next(); {
	case c == '{':
		return r.values()
	case c == '[':
		return r.list()
	case c == '"':
		s, err := r.text()
		r.out = appendText(r.out, s)
		return err
	case c == '-' || c >= '0' && c <= '9':
		return r.number()
	case r.word("null"):
		r.out = append(r.out, wireNull)
	case r.word("true"):
		r.out = append(r.out, wireTrue)
	case r.word("false"):
		r.out = append(r.out, wireFalse)
	default:
		return r.unexpected("a value")
	}
	return nil
}

func (r *jsonReader) word(w string) bool {
	if strings.HasPrefix(string(r.b[r.pos:min(r.pos+len(w), len(r.b))]), w) {
		r.pos += len(w)
		return true
	}
	return false
}

func (r *jsonReader) list() error {
	r.pos++
	head := len(r.out)
	r.out = longHead(r.out, majorArray, 0)
	n := uint64(0)
	for r.next() != ']' || n > 0 {
		if n > 0 {
			if r.next() == ']' {
				break
			}
			if err := r.take(','); err != nil {
				return err
			}
		}
		if err := r.value(); err != nil {
			return at(err, "["+strconv.FormatUint(n, 10)+"]")
		}
		n++
	}
	r.pos++
	binary.BigEndian.PutUint64(r.out[head+1:], n)
	return nil
}

// object reads an object and calls member for each key, to read the value.
func (r *jsonReader) object(member func(key string) error) error {
	if err := r.take('{'); err != nil {
		return err
	}
	for n := 0; ; n++ {
		switch {
		case r.next() == '}':
			r.pos++
			return nil
		case n > 0:
			if err := r.take(','); err != nil {
				return err
			}
		}
		if r.next() != '"' {
			return r.unexpected("a key")
		}
		key, err := r.text()
		if err != nil {
			return err
		}
		if err = r.take(':'); err == nil {
			err = member(key)
		}
		if err != nil {
			return at(err, "."+key)
		}
	}
}

// values reads an object that stands for a map, or for what JSON has no form
// for.
func (r *jsonReader) values() error {
	head := len(r.out)
	r.out = longHead(r.out, majorMap, 0)
	n, special := uint64(0), false
	err := r.object(func(key string) error {
		if special || (key == keyBase64 || key == keyTag) && n > 0 {
			return malformed("%s stands alone", keyBase64+" or "+keyTag)
		}
		if key == keyBase64 || key == keyTag {
			special = true
			r.out = r.out[:head]
			if key == keyTag {
				return r.tag()
			}
			if r.next() != '"' {
				return r.unexpected("text")
			}
			s, err := r.text()
			if err != nil {
				return err
			}
			return r.raw(s)
		}
		n++
		switch encoded, ok := strings.CutPrefix(key, keyBase64+":"); {
		case ok:
			if err := r.raw(encoded); err != nil {
				return err
			}
		case strings.HasPrefix(key, "$$"):
			r.out = appendText(r.out, key[1:])
		case strings.HasPrefix(key, "$"):
			return malformed("unknown key; one that begins with $ has another $ before it")
		default:
			r.out = appendText(r.out, key)
		}
		return r.value()
	})
	if err == nil && !special {
		binary.BigEndian.PutUint64(r.out[head+1:], n)
	}
	return err
}

// raw appends the bytes that s holds in base64.
func (r *jsonReader) raw(s string) error {
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil {
		return malformed("not base64")
	}
	r.out = append(appendHead(r.out, majorBytes, uint64(len(b))), b...)
	return nil
}

func (r *jsonReader) tag() error {
	if err := r.take('['); err != nil {
		return err
	}
	r.space()
	start := r.pos
	for r.pos < len(r.b) && r.b[r.pos] >= '0' && r.b[r.pos] <= '9' {
		r.pos++
	}
	n, err := strconv.ParseUint(string(r.b[start:r.pos]), 10, 64)
	if err != nil || n == tagNumber || n == tagSegment {
		return malformed("not the number of a tag")
	}
	r.out = appendHead(r.out, majorTag, n)
	if err := r.take(','); err != nil {
		return err
	}
	if err := r.value(); err != nil {
		return err
	}
	return r.take(']')
}

// number reads a number. One that is an integer of 64 bits becomes that, others
// keep their digits: how many of them count depends on the type.
func (r *jsonReader) number() error {
	start := r.pos
	digits := func() bool {
		first := r.pos
		for r.pos < len(r.b) && r.b[r.pos] >= '0' && r.b[r.pos] <= '9' {
			r.pos++
		}
		return r.pos > first
	}
	is := func(set string) bool {
		if r.pos < len(r.b) && strings.IndexByte(set, r.b[r.pos]) >= 0 {
			r.pos++
			return true
		}
		return false
	}
	is("-")
	first := r.pos
	if !digits() || r.pos-first > 1 && r.b[first] == '0' {
		return malformed("malformed number at byte %d", start)
	}
	integer := true
	if is(".") {
		if integer = false; !digits() {
			return malformed("malformed number at byte %d", start)
		}
	}
	if is("eE") {
		integer = false
		is("+-")
		if !digits() {
			return malformed("malformed number at byte %d", start)
		}
	}
	text := string(r.b[start:r.pos])
	if integer && text != "-0" {
		if i, err := strconv.ParseInt(text, 10, 64); err == nil && i < 0 {
			r.out = longHead(r.out, majorInt, uint64(^i))
			return nil
		}
		if u, err := strconv.ParseUint(text, 10, 64); err == nil {
			r.out = longHead(r.out, majorUint, u)
			return nil
		}
	}
	r.out = appendText(longHead(r.out, majorTag, tagNumber), text)
	return nil
}

// text reads a string.
func (r *jsonReader) text() (string, error) {
	r.pos++
	start := r.pos
	for i := r.pos; i < len(r.b); i++ { // most have nothing to be replaced
		switch c := r.b[i]; {
		case c == '"':
			s := string(r.b[start:i])
			if !utf8.ValidString(s) {
				return "", malformed("text is not UTF-8")
			}
			r.pos = i + 1
			return s, nil
		case c == '\\':
			r.pos = i
			return r.escapedText(append([]byte(nil), r.b[start:i]...))
		case c < ' ':
			return "", malformed("control character %q in text", c)
		}
	}
	r.pos = len(r.b)
	return "", malformed("text does not end")
}

func (r *jsonReader) escapedText(s []byte) (string, error) {
	for r.pos < len(r.b) {
		c := r.b[r.pos]
		r.pos++
		switch {
		case c == '"':
			if !utf8.Valid(s) {
				return "", malformed("text is not UTF-8")
			}
			return string(s), nil
		case c < ' ':
			return "", malformed("control character %q in text", c)
		case c != '\\':
			s = append(s, c)
			continue
		}
		if r.pos >= len(r.b) {
			break
		}
		c = r.b[r.pos]
		r.pos++
		if i := strings.IndexByte(`"\/bfnrt`, c); i >= 0 {
			s = append(s, "\"\\/\b\f\n\r\t"[i])
			continue
		}
		u, ok := r.unit(c)
		if ok && u >= 0xdc00 && u < 0xe000 {
			ok = false
		}
		if ok && u >= 0xd800 && u < 0xdc00 { // the other half must follow
			if ok = r.pos+1 < len(r.b) && r.b[r.pos] == '\\'; ok {
				r.pos += 2
				var low rune
				if low, ok = r.unit(r.b[r.pos-1]); ok {
					ok = low >= 0xdc00 && low < 0xe000
					u = (u-0xd800)<<10 + low - 0xdc00 + 0x10000
				}
			}
		}
		if !ok {
			return "", malformed("malformed escape in text at byte %d", r.pos)
		}
		s = utf8.AppendRune(s, u)
	}
	return "", malformed("text does not end")
}

// unit reads the four digits of an escape that begins with c, which must be u.
func (r *jsonReader) unit(c byte) (rune, bool) {
	if c != 'u' || len(r.b)-r.pos < 4 {
		return 0, false
	}
	u, err := strconv.ParseUint(string(r.b[r.pos:r.pos+4]), 16, 16)
	r.pos += 4
	return rune(u), err == nil
}

// finite refuses what JSON has no number for.
func (e *encoder) finite(f float64) error {
	if e.json && (f != f || math.IsInf(f, 0)) {
		return unencodable("%v has no form in JSON", f)
	}
	return nil
}

// rawText encodes text that is not UTF-8 so that JSON can tell it from bytes.
func (e *encoder) rawText(b []byte) {
	e.buf = appendHead(e.buf, majorTag, tagRawText)
	e.buf = append(appendHead(e.buf, majorBytes, uint64(len(b))), b...)
}

// textJSON encodes text, of whatever length.
func (e *encoder) textJSON(b []byte) {
	if !utf8.Valid(b) {
		e.rawText(b)
		return
	}
	e.buf = append(appendHead(e.buf, majorText, uint64(len(b))), b...)
}

// numberJSON reads a number as a float of so many bits.
func (d *decoder) numberJSON(bits int) (float64, error) {
	c, err := d.peek()
	if err != nil {
		return 0, err
	}
	var text string
	switch c >> 5 {
	case majorUint, majorInt:
		major, n, err := d.head()
		if err != nil {
			return 0, err
		}
		if text = strconv.FormatUint(n, 10); major == majorInt {
			text = strconv.FormatInt(^int64(n), 10)
		}
	case majorTag:
		_, tag, err := d.head()
		if err == nil && tag != tagNumber {
			err = malformed("expected a number, found tag %d", tag)
		}
		if err != nil {
			return 0, err
		}
		if text, err = d.text(); err != nil {
			return 0, err
		}
	default:
		return 0, malformed("expected a number, found %s", kindOf(c))
	}
	f, err := strconv.ParseFloat(text, bits)
	if err != nil {
		return 0, malformed("%s is no float of %d bits", text[:min(len(text), 40)], bits)
	}
	return f, nil
}

// base64JSON reads text that holds bytes.
func (d *decoder) base64JSON() ([]byte, error) {
	s, err := d.text()
	if err != nil {
		return nil, err
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil {
		return nil, malformed("not base64")
	}
	return b, nil
}

// keyJSON reads the key of an object as a value of a type that is a bool or an
// integer and has no form of its own.
func (d *decoder) keyJSON(_ *plan, k reflect.Value) error {
	s, err := d.text()
	if err != nil {
		return err
	}
	back := ""
	switch {
	case k.Kind() == reflect.Bool:
		b, bad := strconv.ParseBool(s)
		err, back = bad, strconv.FormatBool(b)
		k.SetBool(b)
	case k.CanInt():
		i, bad := strconv.ParseInt(s, 10, k.Type().Bits())
		err, back = bad, strconv.FormatInt(i, 10)
		k.SetInt(i)
	default:
		u, bad := strconv.ParseUint(s, 10, k.Type().Bits())
		err, back = bad, strconv.FormatUint(u, 10)
		k.SetUint(u)
	}
	if err != nil || back != s {
		return malformed("key %q is no %s", s[:min(len(s), 100)], k.Type())
	}
	return nil
}
