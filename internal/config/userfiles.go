package config

import (
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/agent-sandbox/sandbox-go/internal/redact"
)

// userFiles are the settings of config.toml and credentials.toml.
type userFiles struct {
	top      layer
	profiles map[string]layer
	only     layer // default_profile, under "profile"
}

func (l *loader) userFiles() userFiles {
	u := userFiles{top: layer{}, profiles: map[string]layer{}, only: layer{}}
	if l.configDir == "" {
		return u
	}
	for _, file := range []struct {
		name string
		must trustedFile
		take func(*userFiles, string, []item)
	}{{"config.toml", ownFile, l.settings}, {"credentials.toml", secretsFile, l.credentials}} {
		path := filepath.Join(l.configDir, file.name)
		if items, found := l.readTOML(path, file.must); found {
			file.take(&u, path, items)
		}
	}
	return u
}

// readTOML reads a file; problems are noted.
func (l *loader) readTOML(path string, must trustedFile) ([]item, bool) {
	data, found, err := l.readFile(path, must)
	if err != nil {
		l.fail(err)
		return nil, false
	}
	if !found {
		return nil, false
	}
	items, err := parseTOML(data)
	if err != nil {
		l.fail(wrong(l.show(path)+": "+err.Error(), ""))
		return nil, false
	}
	return items, true
}

// at is a place in a file.
func (l *loader) at(file string, it item) string {
	if it.line == 0 {
		return l.show(file)
	}
	return l.show(file) + " line " + strconv.Itoa(it.line)
}

// settings takes what config.toml says.
func (l *loader) settings(u *userFiles, file string, items []item) {
	for i, it := range items {
		to, from, source := u.top, LayerUser, l.at(file, it)
		switch {
		case it.path[0] == "profiles":
			if len(it.path) == 1 && it.value != nil {
				l.fail(wrong(source+": profiles is not a table", "write [profiles.NAME]"))
			}
			if len(it.path) == 1 {
				continue
			}
			if len(it.path) == 2 && it.value != nil {
				l.fail(wrong(source+": profile "+shown(it.path[1])+" is not a table", "write [profiles."+it.path[1]+"]"))
				continue
			}
			to, from = u.profile(it.path[1]), LayerProfile
			if it.path = it.path[2:]; len(it.path) == 0 {
				continue
			}
			source += ", profile " + shown(items[i].path[1])
		case it.key() == "default_profile":
			s := find("profile")
			l.take(u.only, s, LayerUser, source, it)
			continue
		}
		if s := l.fileSetting(file, it, items, source); s != nil {
			l.take(to, s, from, source, it)
		}
	}
}

func (u *userFiles) profile(name string) layer {
	if u.profiles[name] == nil {
		u.profiles[name] = layer{}
	}
	return u.profiles[name]
}

// fileSetting is the setting that a key of config.toml or sandbox.toml is. It is
// nil for tables, for keys that are not ours, and for those that must not be
// there, which are noted.
func (l *loader) fileSetting(file string, it item, items []item, source string) *setting {
	key := it.key()
	s := find(key)
	switch {
	case it.value == nil && isTable(key):
		return nil
	case isOpen(key) && s == nil:
		return &setting{key: key, kind: text, place: inConfig}
	case s == nil && key == "api_key_command", s != nil && s.place == inCredentials:
		if words, err := textOf(it.value); err == nil {
			redact.Add(strings.TrimSpace(words))
		}
		l.fail(wrong(source+": "+key+" is a secret; it belongs in "+l.show(filepath.Join(l.configDir, "credentials.toml")),
			"move it there, below [default] or [PROFILE], and chmod 600 the file"))
	case s == nil && isBelowUnknown(it, items):
	case s == nil:
		l.fail(wrong(source+": "+shown(redact.String(key))+" is not a setting"+meant(key, inConfig), ""))
	case s.place == nowhere:
		l.fail(wrong(source+": "+key+" is not read from files", "set "+s.vars[0]))
	case it.value == nil:
		l.fail(wrong(source+": "+key+" is a table here, not a value", ""))
	default:
		return s
	}
	return nil
}

// isBelowUnknown reports whether the table around a key is not known itself: it
// is named once.
func isBelowUnknown(it item, items []item) bool {
	for n := 1; n < len(it.path); n++ {
		if table := strings.Join(it.path[:n], "."); !isTable(table) {
			return true
		}
	}
	return false
}

func meant(key string, where place) string {
	var keys []string
	for i := range table {
		if table[i].place == where {
			keys = append(keys, table[i].key)
		}
	}
	if where == inConfig {
		keys = append(keys, "default_profile", "profiles")
	} else {
		keys = append(keys, "api_key_command")
	}
	if n := nearest(key, keys); n != "" {
		return "; did you mean " + n + "?"
	}
	return ""
}

// take puts the value of a key into a layer. One that is blank counts as not
// set.
func (l *loader) take(to layer, s *setting, from Layer, source string, it item) {
	v := Value{Key: s.key, Layer: from, Source: source, name: s.key, secret: s.secret()}
	text, err := textOf(it.value)
	switch v.text = strings.TrimSpace(text); {
	case err != nil:
		v.err = wrong(source+": "+s.key+" is "+err.Error(), "")
	case v.text == "":
		return
	default:
		l.finish(s, &v)
	}
	to[s.key] = v
}

// credentials takes what credentials.toml says.
func (l *loader) credentials(u *userFiles, file string, items []item) {
	for _, it := range items {
		section, source := it.path[0], l.at(file, it)
		to, from := u.top, LayerUser
		switch {
		case len(it.path) == 1 && it.value != nil:
			l.noteSecret(it)
			l.fail(wrong(source+": "+shown(redact.String(section))+" is in no section", "write it below [default] or [PROFILE]"))
			continue
		case section != "default":
			to, from = u.profile(section), LayerProfile
			source += ", profile " + shown(section)
		}
		if it.path = it.path[1:]; len(it.path) == 0 {
			continue
		}
		key := it.key()
		s := find(key)
		switch {
		case it.value == nil && isTable(key):
		case key == "api_key_command":
			l.takeCommand(to, from, source, it)
		case s != nil && s.place == inCredentials:
			if old, both := to[s.key]; both && old.words != nil {
				l.noteSecret(it)
				l.fail(bothKeys(source))
				continue
			}
			l.take(to, s, from, source, it)
		case s != nil && s.place == inConfig:
			l.fail(wrong(source+": "+key+" is no secret; it belongs in "+l.show(filepath.Join(l.configDir, "config.toml")), ""))
		default:
			l.noteSecret(it)
			l.fail(wrong(source+": "+shown(redact.String(key))+" is not a setting"+meant(key, inCredentials), ""))
		}
	}
}

// noteSecret makes a value known that may be a secret under a wrong name.
func (l *loader) noteSecret(it item) {
	if text, ok := it.value.(string); ok {
		redact.Add(strings.TrimSpace(text))
	}
}

func (l *loader) takeCommand(to layer, from Layer, source string, it item) {
	words, err := wordsOf(it.value)
	if _, both := to["api_key"]; both && err == nil {
		l.fail(bothKeys(source))
		return
	}
	v := Value{Key: "api_key", Layer: from, Source: source, name: source, secret: true, words: words}
	if err != nil {
		v.err = wrong(source+": api_key_command is "+err.Error(), "")
	}
	to["api_key"] = v
}

func bothKeys(source string) error {
	return wrong(source+": api_key and api_key_command are both set", "keep one of them")
}

// predecessor reads the files of the tool before this one.
func (l *loader) predecessor() []layer {
	if l.home == "" {
		return nil
	}
	var out []layer
	dir := filepath.Join(l.home, ".ebx")
	if env, found := l.envFile(filepath.Join(dir, ".env"), ownFile); found {
		out = append(out, l.variables(LayerPredecessor, env.lookup, func(name string) string { return env.source(l, name) }))
	}
	file := filepath.Join(dir, "config.toml")
	if items, found := l.readTOML(file, ownFile); found {
		from := layer{}
		for _, it := range items {
			if len(it.path) != 2 || it.path[0] != "transport" || it.value == nil {
				continue // of other parts of that tool
			}
			key := it.path[1]
			if key == "api_base_url" {
				key = "api_url"
			}
			if !slices.Contains([]string{"api_key", "api_url", "domain", "region", "http_timeout", "max_retries", "http2"}, key) {
				continue
			}
			if _, twice := from[key]; !twice || it.path[1] == "api_url" {
				l.take(from, find(key), LayerPredecessor, l.at(file, it), it)
			}
		}
		out = append(out, from)
	}
	out = slices.DeleteFunc(out, func(l layer) bool { return len(l) == 0 })
	if len(out) > 0 {
		l.note(slog.LevelWarn, "settings of the predecessor are used; move them to the new files", "from", l.show(dir), "to", l.show(l.configDir))
	}
	return out
}
