// Package config reads the settings of a client: from the options of a call, the
// environment, the user's files, and the files of the project the program is run
// in. [Load] puts them in order and keeps where each comes from; [Config.Provider]
// chooses what creates sandboxes, and [Config.ProviderSettings] is what it needs to
// know.
//
// What a project says has less trust than what a user says: a secret is never
// sent to an address that the project names, unless the same file holds both.
// docs/configuration.md is the description for users; a test compares it with the
// table here.
package config

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/redact"
)

// Options say what to read. The zero value reads the environment and the files
// of this process.
type Options struct {
	// Lookup finds variables; nil: os.LookupEnv.
	Lookup func(string) (string, bool)

	// Environ lists variables as NAME=VALUE, to name those that are not known; nil:
	// os.Environ where Lookup is nil, else none.
	Environ func() []string

	Dir  string // working directory; empty: that of the process
	Home string // home of the user; empty: that of the process; "none": no user's files

	// Overrides are settings of the call, by key; they come first. Empty texts
	// count as not set.
	Overrides map[string]Override
}

// An Override is a setting of the call. Durations are taken as they are: the
// caller has checked them.
type Override struct {
	Text   string
	Source string // as errors name it: "option APIKey"
}

// A Layer is a place that settings come from; lower ones count first.
type Layer int

const (
	LayerCall        Layer = iota + 1 // options of the call
	LayerEnvironment                  // of the process
	LayerProfile                      // of the user's files
	LayerUser                         // top level of the user's files
	LayerPredecessor                  // files of the predecessor
	LayerProject                      // sandbox.toml and .env; not trusted with the user's secrets
	LayerDefault
)

// A Value is what a setting is and where that comes from.
type Value struct {
	Key    string
	Layer  Layer  // LayerDefault when nothing sets it
	Source string // as errors name it: "environment SANDBOX_REGION"

	text   string
	file   string // of the project; what else it says has the trust of this
	secret bool
	words  []string // of an api_key_command, whose answer the text is
	name   string   // variable or key that gives it
	err    error    // why the text can't be used
	also   *Value   // another name of the layer with another value
}

// IsSet reports whether something sets the value, be it blank no more.
func (v Value) IsSet() bool { return v.text != "" || v.words != nil || v.err != nil }

// Text is the value itself, secrets included; empty when it is not set and has
// no default. It has the form that Load gives it: durations as time.Duration
// writes them, switches as true or false.
func (v Value) Text() string { return v.text }

// String is the value for people: of a secret, a hint.
func (v Value) String() string {
	switch {
	case v.words != nil:
		return "(from " + v.words[0] + ")"
	case v.secret && v.text != "":
		return redact.Hint(v.text)
	}
	return redact.String(v.text)
}

// Config is a set of settings, read once. It is safe for concurrent use.
type Config struct {
	layers  []layer // in order
	profile string
	notes   []note
	looked  []string // places of secrets, for the error of one that is missing
	files   string   // the user's config.toml, for suggestions
	opts    Options
}

// A layer holds the settings of one place, by key.
type layer map[string]Value

// A note is something to be said once, when a logger is there.
type note struct {
	level slog.Level
	text  string
	attrs []any
}

// Load reads the settings. Errors, joined: E8007 for what is malformed, unknown
// or misplaced, E1007 for files that others can read or write, E1008 for a profile
// that is not there. A wrong value of a setting that only some providers use is an
// error of [Config.ProviderSettings] instead. Load runs no program and makes no
// request.
func Load(o Options) (*Config, error) { return load(o) }

// Value returns a setting by its key. It panics for a key that no setting has:
// keys are constants.
func (c *Config) Value(key string) Value {
	s := find(key)
	if s == nil {
		panic("config: no setting " + key)
	}
	for _, l := range c.layers {
		if v, ok := l[key]; ok {
			return c.stronger(v)
		}
	}
	return Value{Key: key, Layer: LayerDefault, Source: "default", text: s.def, secret: s.secret()}
}

// stronger lets a project raise the isolation that a user asks for: for this
// one setting order alone does not decide.
func (c *Config) stronger(v Value) Value {
	if v.Key != "isolation" || v.err != nil {
		return v
	}
	levels := find("isolation").choices
	for _, l := range c.layers {
		if p, ok := l[v.Key]; ok && p.Layer == LayerProject && slices.Index(levels, p.text) > slices.Index(levels, v.text) {
			return p
		}
	}
	return v
}

// Values are the settings that something sets, in the order of the table.
func (c *Config) Values() []Value {
	var out []Value
	for _, s := range table {
		if s.kind == foreign {
			continue
		}
		if v := c.Value(s.key); v.Layer != LayerDefault {
			out = append(out, v)
		}
	}
	return out
}

// Text is the value of a setting, or "".
func (c *Config) Text(key string) string { return c.Value(key).text }

// Duration is the value of a setting that is one, or 0.
func (c *Config) Duration(key string) time.Duration {
	d, _ := time.ParseDuration(c.Text(key)) // checked by Load
	return d
}

// Bool is the value of a switch.
func (c *Config) Bool(key string) bool { return c.Text(key) == "true" }

// Profile is the name of the profile in use, or "".
func (c *Config) Profile() string { return c.profile }

// Report says what Load has found worth saying: warnings, and for debugging the
// provider and variables that are not known.
func (c *Config) Report(log *slog.Logger) {
	for _, n := range c.notes {
		log.Log(context.Background(), n.level, n.text, n.attrs...) // settings are read before there is a call
	}
	if !log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	for _, name := range c.unknownVariables() {
		log.Debug("variable not known", "variable", name, "nearest", nearest(name, variables()))
	}
	name, reason := c.Provider()
	log.Debug("provider chosen", "provider", name, "reason", reason)
	if id := c.Value("access_key_id"); name == "local" && id.IsSet() {
		log.Debug("an AccessKey is there, which alone chooses no provider", "source", id.Source)
	}
}

func (c *Config) unknownVariables() []string {
	environ := c.opts.Environ
	if environ == nil {
		if c.opts.Lookup != nil {
			return nil
		}
		environ = os.Environ
	}
	return unknown(environ())
}
