package config

import (
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/agent-sandbox/sandbox-go/internal/redact"
)

// project reads sandbox.toml and the env file beside it. The user's layers may
// name another env file.
func (l *loader) project(user ...layer) []layer {
	dir := projectDir(l.dir)
	if dir == "" {
		return nil
	}
	out := layer{}
	file := filepath.Join(dir, "sandbox.toml")
	if items, found := l.readTOML(file, anyFile); found {
		for _, it := range items {
			source := l.at(file, it)
			s := l.fileSetting(file, it, items, source)
			switch {
			case s == nil:
			case !s.project:
				l.fail(notInProject(source, s.key))
			default:
				l.take(out, s, LayerProject, source, it)
			}
		}
	}
	out.isOf(file)
	return []layer{out, l.projectEnv(dir, user)}
}

// isOf notes which file of the project the values of a layer are from.
func (l layer) isOf(file string) {
	for key, v := range l {
		v.file = file
		l[key] = v
	}
}

func notInProject(source, key string) error {
	return wrong(source+": a project cannot set "+key, "set it in your own file, or in the environment")
}

// projectEnv reads the env file of the project, or the one that the user names
// in its place. A user who names one vouches for its being read, not for what is
// in it. Without that it is a file of the project or none: a link would let a
// project read the keys of another.
func (l *loader) projectEnv(dir string, user []layer) layer {
	file, must, named := filepath.Join(dir, ".env"), itself, Value{}
	for _, from := range user {
		if v, ok := from["env_file"]; ok {
			named = v
			break
		}
	}
	switch {
	case named.text == "none":
		return nil
	case named.text != "":
		must = anyFile
		if file = named.text; !filepath.IsAbs(file) {
			file = filepath.Join(l.dir, file)
		}
	}
	env, found := l.envFile(file, must)
	if !found {
		if named.text != "" && !env.failed {
			l.fail(wrong("env_file "+l.show(file)+" is not there ("+named.Source+")", "write none to read no such file"))
		}
		return nil
	}
	layer := l.variables(LayerProject, env.lookup, func(name string) string { return env.source(l, name) })
	for key, v := range layer {
		if s := find(key); !s.project {
			delete(layer, key)
			if strings.HasPrefix(v.name, "SANDBOX_") {
				l.fail(notInProject(v.Source, v.name))
			} else {
				l.note(slog.LevelDebug, "a project cannot set a variable; it is not used", "variable", v.name, "source", v.Source)
			}
		}
	}
	layer.isOf(file)
	for _, line := range env.lines {
		if isUnknown(line.name) {
			l.note(slog.LevelDebug, "variable not known", "variable", line.name, "source", env.source(l, line.name))
		}
	}
	return layer
}

// An envFile is an env file that was read.
type envFile struct {
	path   string
	lines  []envLine
	failed bool // it is there and can't be read
}

func (l *loader) envFile(path string, must trustedFile) (envFile, bool) {
	data, found, err := l.readFile(path, must)
	if err != nil {
		l.fail(err)
		return envFile{failed: true}, false
	}
	if !found {
		return envFile{}, false
	}
	f := envFile{path: path, lines: parseEnv(string(data))}
	for _, line := range f.lines {
		s := findVar(line.name)
		if line.bad == "" || s == nil || s.kind == foreign {
			continue // a line for other programs, in their dialect
		}
		l.fail(wrong(l.show(path)+" line "+strconv.Itoa(line.line)+": "+line.name+": "+line.bad, ""))
	}
	return f, true
}

// lookup finds a variable: the last line of a name counts.
func (f envFile) lookup(name string) (string, bool) {
	for i := len(f.lines) - 1; i >= 0; i-- {
		if f.lines[i].name == name {
			return f.lines[i].value, true
		}
	}
	return "", false
}

func (f envFile) source(l *loader, name string) string {
	for i := len(f.lines) - 1; i >= 0; i-- {
		if f.lines[i].name == name {
			return l.show(f.path) + " line " + strconv.Itoa(f.lines[i].line) + ", " + redact.String(name)
		}
	}
	return l.show(f.path)
}
