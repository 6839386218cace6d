package command

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"strings"

	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// program is a command that a template declares, taken apart.
type program struct {
	argv [][]part // the first word has no values

	// shell: values are the positional parameters that follow argv.
	shell  bool
	params []string // names of arguments, in their order

	cwd, user string
	env       map[string]string
}

// part is a piece of a word: text, or the value of an argument.
type part struct {
	text string
	arg  string
}

// compile takes a declaration apart. shell is that of the template.
func compile(name string, c model.Command, shell string) (*entry, error) {
	e := &entry{
		info: Info{Name: name, Description: c.Description, Args: []Arg{}}, hidden: c.Hidden, timeout: c.Timeout,
		program: &program{cwd: c.Cwd, user: c.User, env: maps.Clone(c.Env)},
	}
	declared := map[string]bool{}
	for _, m := range c.Args {
		a := Arg{Name: m.Name, Type: m.Type, Required: m.Required, Description: m.Description}
		if a.Type == "" {
			a.Type = typeString
		}
		switch a.Type {
		case typeString, typeInteger, typeFloat, typeBoolean:
		default:
			return nil, fmt.Errorf("argument %s has type %q, which is none of string, integer, float and boolean", a.Name, a.Type)
		}
		if !model.IsName(a.Name) {
			return nil, fmt.Errorf("%q cannot be the name of an argument", a.Name)
		}
		if m.Default != nil {
			var ok bool
			if a.Default, ok = a.parse(*m.Default); !ok {
				return nil, fmt.Errorf("the default of argument %s is not %s", a.Name, article(a.Type))
			}
		}
		declared[a.Name] = true
		e.info.Args = append(e.info.Args, a)
	}
	if err := checkArgs(e.info.Args); err != nil {
		return nil, err
	}
	places := model.Placeholders(c.Run)
	for _, p := range places {
		if !declared[p.Name] {
			return nil, fmt.Errorf("its line asks for {%s}, which is no argument", p.Name)
		}
	}
	if strings.TrimSpace(c.Run) == "" {
		return nil, errors.New("its line is empty")
	}
	if strings.IndexByte(c.Run, 0) >= 0 {
		return nil, errors.New("its line holds a NUL byte")
	}
	if c.Shell {
		e.program.useShell(c.Run, places, shell)
		return e, nil
	}
	var err error
	if e.program.argv, err = split(c.Run, places); err != nil {
		return nil, err
	}
	for _, p := range e.program.argv[0] {
		if p.arg != "" {
			return nil, fmt.Errorf("{%s} is part of the program's name; values can only be arguments", p.arg)
		}
	}
	return e, nil
}

// split takes a line apart into words. As in a shell, blanks separate them, '…'
// and "…" hold them together, and a backslash takes the next character as it is;
// nothing else has a meaning. Values are parts of words, whatever is in them.
func split(line string, places []model.Placeholder) ([][]part, error) {
	var words [][]part
	var word []part
	var run strings.Builder // text of the part under way
	in, quote := false, byte(0)
	flush := func() {
		if run.Len() > 0 {
			word = append(word, part{text: run.String()})
			run.Reset()
		}
	}
	for i := 0; i < len(line); i++ {
		c := line[i]
		for len(places) > 0 && places[0].Start < i {
			places = places[1:] // behind a backslash
		}
		switch {
		case len(places) > 0 && places[0].Start == i:
			flush()
			word, in = append(word, part{arg: places[0].Name}), true
			i = places[0].End - 1
		case quote == 0 && (c == ' ' || c == '\t' || c == '\n' || c == '\r'):
			if flush(); in {
				words, word, in = append(words, word), nil, false
			}
		case quote == 0 && (c == '\'' || c == '"'):
			quote, in = c, true
		case c == quote && quote != 0:
			quote = 0
		case c == '\\' && quote != '\'' && i+1 < len(line) && (quote == 0 || strings.IndexByte("\"\\", line[i+1]) >= 0):
			i++
			run.WriteByte(line[i])
			in = true
		default:
			run.WriteByte(c)
			in = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quote %c of its line is not closed", quote)
	}
	if flush(); in {
		words = append(words, word)
	}
	return words, nil
}

// useShell makes the line one for a shell. Values never become text of it: they
// are handed over as parameters, which the line first gives names, because
// functions have parameters of their own. In the place of {name} stands what
// expands to the value, whole, wherever in quotes the place is.
func (p *program) useShell(line string, places []model.Placeholder, shell string) {
	var head, body strings.Builder
	number := map[string]int{}
	for _, place := range places {
		if number[place.Name] == 0 {
			p.params = append(p.params, place.Name)
			n := len(p.params)
			number[place.Name] = n
			fmt.Fprintf(&head, "__arg%d=${%d}; ", n, n)
		}
	}
	if n := len(p.params); n > 0 {
		fmt.Fprintf(&head, "shift %d\n", n)
	}
	quote, comment := byte(0), false
	for i := 0; i < len(line); i++ {
		if len(places) > 0 && places[0].Start < i {
			places = places[1:]
		}
		if len(places) > 0 && places[0].Start == i {
			variable := fmt.Sprintf("${__arg%d}", number[places[0].Name])
			switch quote {
			case 0:
				body.WriteString(`"` + variable + `"`)
			case '"':
				body.WriteString(variable)
			case '\'':
				body.WriteString(`'"` + variable + `"'`)
			}
			i = places[0].End - 1
			continue
		}
		c := line[i]
		body.WriteByte(c)
		switch {
		case comment:
			comment = c != '\n'
		case c == '\\' && quote != '\'' && i+1 < len(line):
			i++
			body.WriteByte(line[i])
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case quote == 0 && c == '#' && (i == 0 || strings.IndexByte(" \t\n;|&(", line[i-1]) >= 0):
			comment = true
		}
	}
	p.shell = true
	for _, word := range []string{posix(shell), "-c", head.String() + body.String(), "sh"} {
		p.argv = append(p.argv, []part{{text: word}})
	}
}

// posix is shell where it is one that reads the language of sh.
func posix(shell string) string {
	switch path.Base(shell) {
	case "sh", "ash", "bash", "dash", "ksh", "mksh", "zsh":
		return shell
	}
	return "/bin/sh"
}

// arguments are the words for execve(2). An argument without a value is an empty
// text; where a word would be nothing but that, it is left out, other than in a
// shell line.
func (p *program) arguments(values map[string]any) []string {
	var out []string
	for _, word := range p.argv {
		var b strings.Builder
		given := len(word) == 0 // '' or ""
		for _, part := range word {
			if part.arg == "" {
				b.WriteString(part.text)
				given = true
				continue
			}
			if v, ok := values[part.arg]; ok {
				b.WriteString(text(v))
				given = true
			}
		}
		if given {
			out = append(out, b.String())
		}
	}
	for _, name := range p.params {
		out = append(out, text(values[name]))
	}
	return out
}
