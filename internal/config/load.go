package config

import (
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agent-sandbox/sandbox-go/internal/redact"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// A loader reads the layers of one Config.
type loader struct {
	opts      Options
	lookup    func(string) (string, bool)
	dir, home string
	configDir string // empty: no user's files
	notes     []note
	errs      []error
}

func (l *loader) fail(err error) { l.errs = append(l.errs, err) }

func (l *loader) note(level slog.Level, text string, attrs ...any) {
	l.notes = append(l.notes, note{level, text, attrs})
}

func load(o Options) (*Config, error) {
	l := &loader{opts: o, lookup: o.Lookup}
	if l.lookup == nil {
		l.lookup = os.LookupEnv
	}
	l.places()
	c := &Config{opts: o}
	call, env := l.overrides(), l.environment()
	user := l.userFiles()
	profile := l.chooseProfile(user, call, env)
	c.layers = []layer{call, env, user.profiles[profile], user.top}
	old := l.predecessor()
	c.layers = append(c.layers, old...)
	c.layers = append(c.layers, l.project(env, user.profiles[profile], user.top)...)
	c.profile = profile
	c.files = l.show(filepath.Join(l.configDir, "config.toml"))
	c.looked = l.looked(profile, old)
	c.notes = l.notes
	if len(l.errs) > 0 {
		return nil, errors.Join(l.errs...)
	}
	return c, c.check()
}

// check finds settings of every program that can't be used. Those of single
// providers wait until they are.
func (c *Config) check() error {
	var errs []error
	for i := range table {
		s := &table[i]
		if s.lazy() || s.kind == foreign {
			continue
		}
		v := c.Value(s.key)
		if err := c.usable(v); err != nil {
			errs = append(errs, err)
		}
		if s.key == "provider" && v.Layer == LayerProject && !slices.Contains(builtIn, v.text) {
			errs = append(errs, wrong("a project can only choose a provider that is built in: "+v.Source+" names "+shown(v.text),
				"one of "+strings.Join(builtIn, ", ")+"; or choose it yourself with SANDBOX_PROVIDER"))
		}
	}
	return errors.Join(errs...)
}

// usable is the error of a value, if it has one.
func (c *Config) usable(v Value) error {
	if v.err != nil {
		return v.err
	}
	if v.also == nil || !find(v.Key).strict() {
		return nil
	}
	return wrong("conflicting settings: "+v.Source+" and "+v.also.Source+" are both set and differ", "unset one of them, or make them equal")
}

// places finds the folders.
func (l *loader) places() {
	l.dir, l.home = l.opts.Dir, l.opts.Home
	if l.dir == "" {
		l.dir, _ = os.Getwd() // a working directory that is gone has no project
	}
	switch l.home {
	case "":
		if h, _ := l.lookup("HOME"); filepath.IsAbs(h) {
			l.home = filepath.Clean(h)
		} else if l.opts.Lookup == nil {
			if h, err := os.UserHomeDir(); err == nil && filepath.IsAbs(h) {
				l.home = h
			}
		}
	case "none":
		l.home = ""
	}
	own, _ := l.lookup("SANDBOX_CONFIG_DIR")
	xdg, _ := l.lookup("XDG_CONFIG_HOME")
	switch own = strings.TrimSpace(own); {
	case own != "" && !filepath.IsAbs(own):
		l.fail(wrong("SANDBOX_CONFIG_DIR="+shown(own)+": not an absolute path", ""))
	case own != "":
		l.configDir = filepath.Clean(own)
	case filepath.IsAbs(xdg):
		l.configDir = filepath.Join(xdg, "sandbox")
	case l.home != "":
		l.configDir = filepath.Join(l.home, ".config", "sandbox")
	}
}

func (l *loader) overrides() layer {
	out := layer{}
	for _, key := range slices.Sorted(maps.Keys(l.opts.Overrides)) {
		s, o := find(key), l.opts.Overrides[key]
		if s == nil {
			panic("config: no setting " + key)
		}
		text := strings.TrimSpace(o.Text)
		if text == "" {
			continue
		}
		v := Value{Key: key, Layer: LayerCall, Source: o.Source, name: o.Source, secret: s.secret(), text: text}
		if s.kind != duration {
			l.finish(s, &v)
		}
		out[key] = v
	}
	return out
}

// label is a value as errors about its text name it.
func (v *Value) label() string {
	switch {
	case v.Layer == LayerEnvironment:
		return v.name
	case v.name == v.Key: // of a TOML file
		return v.Source + ": " + v.name
	}
	return v.Source
}

// finish checks the text of v and gives it its form. Secrets are known from now
// on, usable or not.
func (l *loader) finish(s *setting, v *Value) {
	if s.secret() {
		redact.Add(v.text, strings.Trim(v.text, "\"'`"))
	}
	text, err := s.parse(v.text)
	if err != nil {
		v.err = wrongValue(s, v.label(), v.text, err)
		v.text = ""
		return
	}
	v.text = text
}

func (l *loader) environment() layer {
	return l.variables(LayerEnvironment, l.lookup, func(name string) string { return "environment " + name })
}

// variables takes the settings that lookup has, by all their names.
func (l *loader) variables(from Layer, lookup func(string) (string, bool), source func(string) string) layer {
	out := layer{}
	for i := range table {
		s := &table[i]
		if s.kind == foreign {
			continue
		}
		for _, name := range s.vars {
			text, _ := lookup(name)
			if text = strings.TrimSpace(text); text == "" {
				continue
			}
			v := Value{Key: s.key, Layer: from, Source: source(name), name: name, secret: s.secret(), text: text}
			l.finish(s, &v)
			if name == "AccessKey" || name == "AccessSecret" {
				l.note(slog.LevelWarn, "variable is out of use", "variable", name, "instead", s.vars[0])
			}
			first, is := out[s.key]
			switch {
			case !is:
				out[s.key] = v
			case first.err == nil && (v.err != nil || v.text != first.text) && first.also == nil:
				first.also = &v
				out[s.key] = first
				if !s.strict() {
					l.note(slog.LevelWarn, "two names of a setting differ", "used", first.Source, "not used", v.Source)
				}
			}
		}
	}
	return out
}

// chooseProfile is what names a profile first.
func (l *loader) chooseProfile(user userFiles, call, env layer) string {
	var v Value
	for _, from := range []layer{call, env, user.only} {
		if got, ok := from["profile"]; ok {
			v = got
			break
		}
	}
	switch _, known := user.profiles[v.text]; {
	case v.text == "" || known:
		return v.text
	case v.text == "default": // the top level has that name in credentials.toml
		return ""
	}
	have := "there are none"
	if len(user.profiles) > 0 {
		have = "profiles: " + strings.Join(slices.Sorted(maps.Keys(user.profiles)), ", ")
	}
	l.fail(&errdefs.Error{Code: "E1008", Op: op,
		Message:    "no profile " + shown(redact.String(v.text)) + "; " + have + " (" + v.Source + ")",
		Suggestion: "name one of these, or add [profiles." + redact.String(v.text) + "] to " + l.show(filepath.Join(l.configDir, "config.toml"))})
	return ""
}

// looked names the places where a secret could have been.
func (l *loader) looked(profile string, old []layer) []string {
	var places []string
	if l.configDir != "" {
		file := l.show(filepath.Join(l.configDir, "credentials.toml"))
		if profile != "" {
			places = append(places, "profile "+shown(profile)+" and [default] of "+file)
		} else {
			places = append(places, file)
		}
	}
	if len(old) > 0 {
		places = append(places, "~/.ebx")
	}
	return places
}

// variables are the names that are known, for hints.
func variables() []string {
	var names []string
	for i := range table {
		names = append(names, table[i].vars...)
	}
	return names
}

// unknown are the variables that look like ours and are not.
func unknown(environ []string) []string {
	var out []string
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if isUnknown(name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func isUnknown(name string) bool {
	return strings.HasPrefix(name, "SANDBOX_") && findVar(name) == nil &&
		!slices.ContainsFunc(others, func(o string) bool { return strings.HasPrefix(name, o) })
}
