// Package drivers has the programs that run cells of code, one for each
// interpreter, and the side that speaks to them: an [Engine] is a driver's
// process, [Engine.Run] runs a cell in it. How the process is started is for the
// packages that import this one: runtime/code inside of a sandbox, sandboxfn from
// the outside. It needs nothing but the standard library.
//
// A driver reads requests as lines of JSON from descriptor 3 and writes events as
// lines of JSON to descriptor 4. Descriptors 1 and 2 belong to the cells and what
// they start; 0 is empty.
package drivers

import (
	"crypto/rand"
	"embed"
	"encoding/hex"
	"slices"
	"strings"
)

//go:embed *.py *.js *.sh
var embedded embed.FS

// Language is one that there is a driver for.
type Language struct {
	Name    string
	Program string   // looked up in the PATH of the sandbox
	Args    []string // before those of the driver
	Driver  string   // its file; empty: the program is the driver
	Rest    []string // arguments of the driver
	Install string   // what has the program
	Group   bool     // interrupts are for the whole group at once
}

var languages = []Language{
	{Name: "python", Program: "python3", Args: []string{"-u"}, Driver: "driver.py", Install: "python3"},
	{Name: "javascript", Program: "node", Driver: "driver.js", Rest: []string{"javascript"}, Install: "nodejs"},
	{Name: "typescript", Program: "node", Args: []string{"--disable-warning=ExperimentalWarning"}, Driver: "driver.js", Rest: []string{"typescript"}, Install: "nodejs 22.13 or newer"},
	{Name: "bash", Program: "bash", Args: []string{"--noprofile", "--norc"}, Driver: "driver.sh", Install: "bash", Group: true},
}

// Command is the program and its arguments, with the drivers' files in dir. The
// caller owns the slice.
func (l *Language) Command(dir string) []string {
	argv := append([]string{l.Program}, l.Args...)
	if l.Driver != "" {
		argv = append(append(argv, dir+"/"+l.Driver), l.Rest...)
	}
	return argv
}

// aliases are other names of languages.
var aliases = map[string]string{"py": "python", "python3": "python", "js": "javascript", "node": "javascript", "ts": "typescript", "sh": "bash"}

// Canonical is the one name of a language; empty is Python.
func Canonical(name string) string {
	name = strings.ToLower(strings.TrimSpace(name))
	if name == "" {
		return "python"
	}
	if full, ok := aliases[name]; ok {
		return full
	}
	return name
}

// Find returns the language of a canonical name.
func Find(name string) (Language, bool) {
	i := slices.IndexFunc(languages, func(l Language) bool { return l.Name == name })
	if i < 0 {
		return Language{}, false
	}
	return languages[i], true
}

// Names lists the languages in order.
func Names() []string {
	var out []string
	for _, l := range languages {
		out = append(out, l.Name)
	}
	slices.Sort(out)
	return out
}

// Files are the texts of the drivers and what they load, by file name. They have
// to lie in one folder.
func Files() map[string][]byte {
	out := map[string][]byte{}
	entries, err := embedded.ReadDir(".")
	if err != nil {
		panic(err) // it is part of the program
	}
	for _, e := range entries {
		if out[e.Name()], err = embedded.ReadFile(e.Name()); err != nil {
			panic(err)
		}
	}
	return out
}

// NewID makes an id that no other has, of letters and digits.
func NewID() string {
	var b [16]byte
	rand.Read(b[:]) // does not fail
	return hex.EncodeToString(b[:])
}
