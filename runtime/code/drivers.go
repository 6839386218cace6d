//go:build linux

package code

import (
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/agent-sandbox/sandbox-go/runtime/code/drivers"
)

// find returns the language of a canonical name.
func (s *Service) find(name string) (drivers.Language, bool) {
	if program := s.opts.Interpreter.Programs[name]; program != "" {
		return drivers.Language{Name: name, Program: program, Install: "the program " + program}, true
	}
	return drivers.Find(name)
}

// names lists what can be asked for.
func (s *Service) names() []string {
	out := drivers.Names()
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

// dir returns the folder with the file of a driver in it. The files are written
// when they are first needed, and again when somebody has removed them.
func (f *folder) dir(driver string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path != "" {
		if _, err := os.Stat(filepath.Join(f.path, driver)); err == nil {
			return f.path, nil
		}
		os.RemoveAll(f.path)
		f.path = ""
	}
	dir, err := os.MkdirTemp("", "sandbox-code-")
	if err != nil {
		return "", err
	}
	f.path = dir
	for name, text := range drivers.Files() {
		p := filepath.Join(dir, name)
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
	return dir, nil
}

func (f *folder) remove() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path != "" {
		os.RemoveAll(f.path)
		f.path = ""
	}
}
