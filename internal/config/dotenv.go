package config

import "strings"

// A line of an env file that sets a variable.
type envLine struct {
	name, value string
	line        int
	bad         string // why it can't be read; then value is empty
}

// parseEnv reads an env file. Its dialect:
//
//   - One variable a line, NAME=VALUE, with or without "export" before it; blanks
//     around the name and the value don't count. A name is letters, digits and _,
//     no digit first.
//   - A line that is empty or begins with # says nothing.
//   - A value without quotes ends at the end of the line, or at a # with a blank
//     before it.
//   - In 'single quotes' everything stands for itself. In "double quotes" \n, \r,
//     \t, \\, \", \$ and \` stand for what they do in a shell's $'…', other
//     backslashes for themselves. Quoted values may go over several lines; after the
//     closing quote only blanks and a comment may come.
//   - Nothing is expanded: a $ stands for itself.
//   - The last line of a name counts. Lines end with LF or CR LF; a byte order mark
//     at the beginning is left out.
//
// Lines that are none of this are left out, and named when they hold a name:
// such files are written for other programs, too.
func parseEnv(data string) []envLine {
	data = strings.TrimPrefix(data, "\ufeff")
	var lines []envLine
	for n := 1; data != ""; n++ {
		var row string
		row, data, _ = strings.Cut(data, "\n")
		name, rest, ok := assignment(row)
		if !ok {
			continue
		}
		l := envLine{name: name, line: n}
		if rest == "" || rest[0] != '"' && rest[0] != '\'' {
			l.value = plainValue(rest)
			lines = append(lines, l)
			continue
		}
		// A quoted value may take more lines than this one.
		text := rest
		if data != "" {
			text += "\n" + data
		}
		value, used, bad := quotedValue(text)
		if l.value, l.bad = value, bad; bad == "" {
			if more := used - len(rest); more > 0 {
				taken := data[:more-1]
				n += 1 + strings.Count(taken, "\n")
				_, data, _ = strings.Cut(data[more-1:], "\n")
			}
		}
		lines = append(lines, l)
	}
	return lines
}

// assignment takes the name off a line.
func assignment(row string) (name, rest string, ok bool) {
	row = strings.TrimLeft(row, " \t\r\f\v")
	name, rest, ok = strings.Cut(row, "=")
	if !ok || strings.HasPrefix(row, "#") {
		return "", "", false
	}
	name = strings.TrimSpace(name)
	if after, found := strings.CutPrefix(name, "export"); found && strings.TrimLeft(after, " \t") != after {
		name = strings.TrimLeft(after, " \t")
	}
	if !isVariable(name) {
		return "", "", false
	}
	return name, strings.TrimLeft(rest, " \t"), true
}

func isVariable(name string) bool {
	for i, r := range name {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '_' && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != ""
}

func plainValue(v string) string {
	for i := range len(v) {
		if v[i] == '#' && (i == 0 || v[i-1] == ' ' || v[i-1] == '\t') {
			v = v[:i]
			break
		}
	}
	return strings.TrimSpace(v)
}

// quotedValue reads a value from its opening quote to the end of the line of
// its closing one; used is how far that is.
func quotedValue(text string) (value string, used int, bad string) {
	quote := text[0]
	var b strings.Builder
	i := 1
	for ; i < len(text) && text[i] != quote; i++ {
		if text[i] != '\\' || quote == '\'' || i+1 == len(text) {
			b.WriteByte(text[i])
			continue
		}
		switch i++; text[i] {
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 't':
			b.WriteByte('\t')
		case '\\', '"', '$', '`':
			b.WriteByte(text[i])
		default:
			b.WriteByte('\\')
			b.WriteByte(text[i])
		}
	}
	if i == len(text) {
		return "", 0, "its quotes don't end"
	}
	i++
	end := len(text)
	if nl := strings.IndexByte(text[i:], '\n'); nl >= 0 {
		end = i + nl
	}
	if rest := strings.TrimSpace(text[i:end]); rest != "" && !strings.HasPrefix(rest, "#") {
		return "", 0, "there is something after its quotes"
	}
	return strings.ReplaceAll(b.String(), "\r\n", "\n"), end, ""
}
