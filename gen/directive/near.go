package directive

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
)

// slip matches a line that may have been meant as a directive:
//
//	1 slashes  2 blanks or a sign  3 the word  4 what stands for the colon  5 kind
var slip = regexp.MustCompile(`^(///?)([ \t]*[+@]?)([A-Za-z]+)([ \t]*[:./=_;-]?[ \t]*)([A-Za-z]+)(?:[ \t]|$)`)

// joined matches the same with nothing between word and kind.
var joined = regexp.MustCompile(`^(///?)([ \t]*[+@]?)(?i:sandbox)()()(?i:(func|class|method|enter|exit|package|with))(?:[ \t]|$)`)

// nearMiss finds directives that the go command would take for prose.
//
// A line whose only slip is a space after the slashes is common in prose
// ("// sandbox:func is the directive that …"), so everything that follows must
// look like an option before it is reported; the same goes for other slips
// that leave a readable sentence.
func nearMiss(c *ast.Comment) []Problem {
	text := c.Text
	if strings.HasPrefix(text, "//sandbox:") {
		return unknownSlip(c)
	}
	m := slip.FindStringSubmatchIndex(text)
	word, kind, colon := "", "", ""
	if m != nil {
		word, colon, kind = text[m[6]:m[7]], strings.TrimSpace(text[m[8]:m[9]]), text[m[10]:m[11]]
	}
	if m == nil || !slices.Contains(kinds, strings.ToLower(kind)) {
		if m = joined.FindStringSubmatchIndex(text); m == nil {
			return nil
		}
		word, colon, kind = "sandbox", "", text[m[10]:m[11]]
	}
	if !closeWord(word) {
		return nil
	}
	plain := m[3] == 2 && m[4] == m[5] && colon == ":" // nothing but letters can be wrong
	if !plain && !onlyOptions(text[m[11]:]) {
		return nil
	}
	// "// in the sandbox: with" may be the end of a line of prose.
	words := []string{string(With), string(Enter), string(Exit)}
	if m[4] != m[5] && text[m[8]:m[9]] != ":" && slices.Contains(words, strings.ToLower(kind)) {
		return nil
	}
	return []Problem{*spelling(c.Slash, c.Slash+token.Pos(m[11]), strings.ToLower(kind))}
}

// unknownSlip handles what starts like a directive but is not of its form:
// "//sandbox:", "//sandbox: func", "//sandbox:Func".
func unknownSlip(c *ast.Comment) []Problem {
	rest := c.Text[len("//sandbox:"):]
	trimmed := strings.TrimLeft(rest, " \t")
	kind, _, _ := strings.Cut(strings.ReplaceAll(trimmed, "\t", " "), " ")
	end := c.Slash + token.Pos(len(c.Text)-len(trimmed)+len(kind))
	lower := strings.ToLower(kind)
	if slices.Contains(kinds, lower) {
		return []Problem{*spelling(c.Slash, end, lower)}
	}
	p := Problem{Pos: c.Slash, End: end, Code: "G001"}
	near := nearest(lower, kinds)
	if kind == "" || near == "" {
		name := ""
		if kind != "" {
			name = show(kind)
		}
		p.Message = "unknown directive //sandbox:" + name + "; kinds are " + strings.Join(kinds, ", ")
	} else {
		p.Message = "unknown directive //sandbox:" + show(kind) + "; did you mean //sandbox:" + near + "?"
		p.Fix = &Fix{Pos: c.Slash, End: end, Text: "//sandbox:" + near}
	}
	return []Problem{p}
}

// classifyBlock reports a /* */ comment that holds nothing but directives.
// One that holds other text too is documentation or code that was commented
// out.
func classifyBlock(c *ast.Comment) []Problem {
	body := strings.TrimSuffix(strings.TrimPrefix(c.Text, "/*"), "*/")
	var fixed []string
	kind := ""
	for line := range strings.SplitSeq(body, "\n") {
		line = strings.TrimSpace(strings.Trim(line, " \t\r*"))
		if line == "" {
			continue
		}
		line = "//" + strings.TrimSpace(strings.TrimPrefix(line, "//"))
		m := slip.FindStringSubmatchIndex(line)
		if m == nil || !closeWord(line[m[6]:m[7]]) || strings.TrimSpace(line[m[8]:m[9]]) != ":" ||
			!slices.Contains(kinds, strings.ToLower(line[m[10]:m[11]])) || !onlyOptions(line[m[11]:]) {
			return nil
		}
		if kind == "" {
			kind = strings.ToLower(line[m[10]:m[11]])
		}
		fixed = append(fixed, "//sandbox:"+strings.ToLower(line[m[10]:m[11]])+line[m[11]:])
	}
	if kind == "" {
		return nil
	}
	p := spelling(c.Slash, c.Slash+token.Pos(len(c.Text)), kind)
	p.Message += "; directives are line comments"
	p.Fix.Text = strings.Join(fixed, "\n")
	return []Problem{*p}
}

// spelling is the problem of a directive that is none because of how it is
// written.
func spelling(pos, end token.Pos, kind string) *Problem {
	return &Problem{
		Pos: pos, End: end, Code: "G002",
		Message: "not a directive because of its spelling; write //sandbox:" + kind,
		Fix:     &Fix{Pos: pos, End: end, Text: "//sandbox:" + kind},
	}
}

// Similar reports whether word looks like a slip for want, but is not it.
func Similar(word, want string) bool {
	return word != want && distance(strings.ToLower(word), want) <= 2
}

// Nearest returns the candidate that s may be a slip for, or "".
func Nearest(s string, candidates []string) string { return nearest(s, candidates) }

// closeWord reports whether a word is sandbox or within two edits of it.
func closeWord(w string) bool {
	return distance(strings.ToLower(w), "sandbox") <= 2
}

// onlyOptions reports whether every word of text could be an option.
func onlyOptions(text string) bool {
	args, problems := scan(text, token.Pos(1))
	if len(problems) > 0 {
		// Broken values still tell options from prose by their names.
		args = nil
		for w := range strings.FieldsSeq(text) {
			key, _, found := strings.Cut(w, "=")
			args = append(args, Arg{Key: key, HasValue: found})
		}
	}
	for _, a := range args {
		if !a.HasValue && !known(a.Key) || !isKey(a.Key) {
			return false
		}
	}
	return true
}

// nearest returns the candidate that is most like s, or "" when none is near:
// within two edits, and fewer than half its letters.
func nearest(s string, candidates []string) string {
	best, at := "", 3
	for _, c := range candidates {
		if d := distance(s, c); d < at && d*2 < len(c)+1 {
			best, at = c, d
		}
	}
	for _, c := range candidates { // function
		if best == "" && len(c) > 3 && strings.HasPrefix(s, c) {
			best = c
		}
	}
	if best == "" { // func,timeout=5s
		if n := strings.IndexFunc(s, func(r rune) bool { return r < 'a' || r > 'z' }); n > 0 && slices.Contains(candidates, s[:n]) {
			return s[:n]
		}
	}
	return best
}

// distance counts the insertions, deletions, replacements and swaps of
// neighbours that lead from a to b.
func distance(a, b string) int {
	if len(a) > len(b)+3 || len(b) > len(a)+3 || len(a) > 64 {
		return 99 // far enough for every caller
	}
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
