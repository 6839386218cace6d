package directive

import (
	"go/token"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// scanner reads the options of a directive. The standard library's ParseArgs
// cuts env="A=1 2" at the space, hence our own.
type scanner struct {
	text     string
	off      int
	base     token.Pos
	problems []Problem
}

// scan reads text, which starts at pos in the file.
func scan(text string, pos token.Pos) ([]Arg, []Problem) {
	s := &scanner{text: text, base: pos}
	var args []Arg
	for s.skipSpace(); s.off < len(s.text); s.skipSpace() {
		if a, ok := s.arg(); ok {
			args = append(args, a)
		}
	}
	return args, s.problems
}

func (s *scanner) pos() token.Pos { return s.base + token.Pos(s.off) }

func (s *scanner) skipSpace() {
	for s.off < len(s.text) {
		r, n := utf8.DecodeRuneInString(s.text[s.off:])
		if !unicode.IsSpace(r) {
			return
		}
		s.off += n
	}
}

// word takes everything up to the next space.
func (s *scanner) word() string {
	n := strings.IndexFunc(s.text[s.off:], unicode.IsSpace)
	if n < 0 {
		n = len(s.text) - s.off
	}
	w := s.text[s.off : s.off+n]
	s.off += n
	return w
}

// arg reads one option; false: it was so malformed that there is none.
func (s *scanner) arg() (Arg, bool) {
	a := Arg{Pos: s.pos()}
	n := strings.IndexFunc(s.text[s.off:], func(r rune) bool { return r == '=' || unicode.IsSpace(r) })
	if n < 0 {
		n = len(s.text) - s.off
	}
	a.Key = s.text[s.off : s.off+n]
	s.off += n
	if a.Key == "" {
		w := s.word()
		s.fail(a.Pos, "G010", "option name missing before "+strconv.Quote(w)+"; write option=value without spaces",
			&Fix{Pos: a.Pos, End: s.pos()})
		return a, false
	}
	if s.off == len(s.text) || s.text[s.off] != '=' {
		a.End = s.pos()
		return a, true
	}
	s.off++
	a.HasValue, a.ValuePos = true, s.pos()
	ok := true
	switch {
	case s.off < len(s.text) && s.text[s.off] == '"':
		ok = s.quoted(&a)
	case s.off < len(s.text) && s.text[s.off] == '`':
		ok = s.raw(&a)
	default:
		ok = s.bare(&a)
	}
	a.End = s.pos()
	return a, ok
}

// bare reads a value without quotes.
func (s *scanner) bare(a *Arg) bool {
	w := s.word()
	if w == "" {
		s.fail(a.Pos, "G012", "option "+show(a.Key)+" needs a value", nil)
		return false
	}
	if i := strings.IndexAny(w, "\"`"); i >= 0 {
		if strings.Count(w, w[i:i+1])%2 == 1 { // goes on behind a space
			if n := strings.IndexByte(s.text[s.off:], w[i]); n >= 0 {
				s.off += n + 1
				s.word()
			}
		}
		s.fail(a.ValuePos, "G013", "option "+show(a.Key)+": quotes must enclose the whole value, as in "+a.Key+`="…"`, nil)
		return false
	}
	a.Value = w
	a.split(w, a.ValuePos)
	return true
}

// raw reads a value in back quotes, in which nothing is special but ",".
func (s *scanner) raw(a *Arg) bool {
	n := strings.IndexByte(s.text[s.off+1:], '`')
	if n < 0 {
		return s.unterminated(a)
	}
	a.Value = s.text[s.off+1 : s.off+1+n]
	a.split(a.Value, a.ValuePos+1)
	s.off += n + 2
	return s.closed(a)
}

// split cuts a value that has no escapes into its elements.
func (a *Arg) split(text string, pos token.Pos) {
	for e := range strings.SplitSeq(text, ",") {
		a.Elements = append(a.Elements, Element{Text: e, Pos: pos})
		pos += token.Pos(len(e) + 1)
	}
}

// quoted reads a value in double quotes: Go's escapes, and "\," for a comma
// that does not separate elements.
func (s *scanner) quoted(a *Arg) bool {
	s.off++
	var value, elem []byte
	start := s.pos()
	flush := func() { a.Elements = append(a.Elements, Element{Text: string(elem), Pos: start}) }
	for s.off < len(s.text) {
		rest := s.text[s.off:]
		switch {
		case rest[0] == '"':
			s.off++
			flush()
			a.Value = string(value)
			return s.closed(a)
		case rest[0] == ',':
			s.off++
			flush()
			value, elem, start = append(value, ','), nil, s.pos()
		case strings.HasPrefix(rest, `\,`):
			s.off += 2
			value, elem = append(value, ','), append(elem, ',')
		default:
			r, multibyte, tail, err := strconv.UnquoteChar(rest, '"')
			if err != nil {
				s.fail(s.pos(), "G013", "option "+show(a.Key)+": "+strconv.Quote(clip(rest, 2))+` is not an escape; write "\\" for a backslash`, nil)
				s.skipQuoted()
				return false
			}
			s.off += len(rest) - len(tail)
			var c []byte
			if multibyte || r < utf8.RuneSelf {
				c = utf8.AppendRune(nil, r)
			} else {
				c = []byte{byte(r)} // \xff and \377 name a byte, not a rune
			}
			value, elem = append(value, c...), append(elem, c...)
		}
	}
	return s.unterminated(a)
}

// skipQuoted goes on behind a broken quoted value, so that its words are not
// reported as options.
func (s *scanner) skipQuoted() {
	for s.off < len(s.text) {
		switch s.text[s.off] {
		case '\\':
			s.off++
		case '"':
			s.off++
			return
		}
		s.off++
	}
	s.off = len(s.text)
}

func (s *scanner) unterminated(a *Arg) bool {
	s.fail(a.ValuePos, "G013", "option "+show(a.Key)+": the closing quote is missing", nil)
	s.off = len(s.text)
	return false
}

// closed checks that nothing sticks to the closing quote.
func (s *scanner) closed(a *Arg) bool {
	pos := s.pos()
	if w := s.word(); w != "" {
		s.fail(pos, "G013", "option "+show(a.Key)+": "+strconv.Quote(w)+" follows the closing quote; write a space between options", nil)
		return false
	}
	return true
}

func (s *scanner) fail(pos token.Pos, code, message string, fix *Fix) {
	end := s.pos()
	if end < pos {
		end = pos
	}
	s.problems = append(s.problems, Problem{Pos: pos, End: end, Code: code, Message: message, Fix: fix})
}

// printValue writes the value so that scanning it gives the same elements.
func (a *Arg) printValue() string {
	if a.canBeBare() {
		return a.Value
	}
	var b strings.Builder
	b.WriteByte('"')
	for i, e := range a.Elements {
		if i > 0 {
			b.WriteByte(',')
		}
		q := strconv.Quote(e.Text)
		b.WriteString(strings.ReplaceAll(q[1:len(q)-1], ",", `\,`))
	}
	b.WriteByte('"')
	return b.String()
}

func (a *Arg) canBeBare() bool {
	if a.Value == "" || !utf8.ValidString(a.Value) || strings.Count(a.Value, ",") != len(a.Elements)-1 {
		return false
	}
	return !strings.ContainsFunc(a.Value, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == '"' || r == '`' || r == utf8.RuneError
	})
}

// clip returns the first n runes of s.
func clip(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

// show prints text from the source: identifiers as they are, anything else
// quoted, so that odd characters are seen.
func show(s string) string {
	if token.IsIdentifier(s) || token.IsKeyword(s) || isKey(s) {
		return s
	}
	return strconv.Quote(s)
}

// isKey reports whether s has the form of an option's name.
func isKey(s string) bool {
	name, param, dotted := strings.Cut(s, ".")
	if name == "" || dotted && !token.IsIdentifier(param) {
		return false
	}
	for i, r := range name {
		if !(r >= 'a' && r <= 'z' || i > 0 && (r >= '0' && r <= '9' || r == '_')) {
			return false
		}
	}
	return true
}
