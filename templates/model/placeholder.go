package model

// Placeholder is one place in the line of a named command where a value goes.
type Placeholder struct {
	Name       string
	Start, End int // line[Start:End] is "{name}"
}

// Placeholders finds the places for values in the line of a named command, in
// their order: a name in braces, {name}, of letters, digits, "_" and "-" that
// begins with a letter or "_". Braces around anything else stay as they are, and
// so do those after a dollar sign: ${HOME} is the shell's. Values are put in by
// offset in one pass, so a value that looks like a placeholder stays data.
func Placeholders(line string) []Placeholder {
	var out []Placeholder
	for i := 0; i < len(line); i++ {
		if line[i] != '{' || i > 0 && line[i-1] == '$' {
			continue
		}
		j := i + 1
		for j < len(line) && nameByte(line[j], j > i+1) {
			j++
		}
		if j == i+1 || j == len(line) || line[j] != '}' {
			continue
		}
		out = append(out, Placeholder{Name: line[i+1 : j], Start: i, End: j + 1})
		i = j
	}
	return out
}

// IsName reports whether s can be the name of an argument.
func IsName(s string) bool {
	for i := range len(s) {
		if !nameByte(s[i], i > 0) {
			return false
		}
	}
	return s != ""
}

func nameByte(c byte, inner bool) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' || inner && ('0' <= c && c <= '9' || c == '-')
}
