//go:build linux

package code

import (
	"embed"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

//go:embed drivers
var embedded embed.FS

// language is one that there is a driver for.
type language struct {
	name    string
	program string   // looked up in the PATH of the sandbox
	args    []string // before those of the driver
	driver  string   // its file
	rest    []string // arguments of the driver
	install string   // what has the program
	group   bool     // interrupts are for the whole group at once
}

var languages = []language{
	{name: "python", program: "python3", args: []string{"-u"}, driver: "driver.py", install: "python3"},
	{name: "javascript", program: "node", driver: "driver.js", rest: []string{"javascript"}, install: "nodejs"},
	{name: "typescript", program: "node", args: []string{"--disable-warning=ExperimentalWarning"}, driver: "driver.js", rest: []string{"typescript"}, install: "nodejs 22.13 or newer"},
	{name: "bash", program: "bash", args: []string{"--noprofile", "--norc"}, driver: "driver.sh", install: "bash", group: true},
}

// aliases are other names of languages.
var aliases = map[string]string{"py": "python", "python3": "python", "js": "javascript", "node": "javascript", "ts": "typescript", "sh": "bash"}

// canonical is the one name of a language; empty is Python.
func canonical(name string) string {
	name = strings.ToLower(strings.TrimSpace(name))
	if name == "" {
		return "python"
	}
	if full, ok := aliases[name]; ok {
		return full
	}
	return name
}

// find returns the language of a canonical name.
func (s *Service) find(name string) (language, bool) {
	if program := s.opts.Interpreter.Programs[name]; program != "" {
		return language{name: name, program: program, install: "the program " + program}, true
	}
	i := slices.IndexFunc(languages, func(l language) bool { return l.name == name })
	if i < 0 {
		return language{}, false
	}
	return languages[i], true
}

// names lists what can be asked for.
func (s *Service) names() []string {
	var out []string
	for _, l := range languages {
		out = append(out, l.name)
	}
	for name := range s.opts.Interpreter.Programs {
		out = append(out, name)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// folder holds the drivers' files where every user of the sandbox can read them.
type folder struct {
	mu   sync.Mutex
	path string // guarded by mu; empty: not made yet
}

// file returns the path of a driver. The files are written when they are first
// needed, and again when somebody has removed them.
func (f *folder) file(name string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path != "" {
		p := filepath.Join(f.path, name)
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
		os.RemoveAll(f.path)
		f.path = ""
	}
	dir, err := os.MkdirTemp("", "sandbox-code-")
	if err != nil {
		return "", err
	}
	f.path = dir
	entries, err := embedded.ReadDir("drivers")
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		text, err := embedded.ReadFile("drivers/" + e.Name())
		if err != nil {
			return "", err
		}
		p := filepath.Join(dir, e.Name())
		if err := os.WriteFile(p, text, 0o444); err != nil {
			return "", err
		}
		// The mask of file modes is not known here.
		if err := os.Chmod(p, 0o444); err != nil {
			return "", err
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	return filepath.Join(dir, name), nil
}

func (f *folder) remove() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path != "" {
		os.RemoveAll(f.path)
		f.path = ""
	}
}
