package config

import (
	"fmt"
	"strings"
	"testing"
)

// sample is one of two valid texts of a setting, and the form it is kept in.
func sample(s *setting, n int) (text, want string) {
	switch s.kind {
	case secret:
		text = fmt.Sprintf("secret-of-layer-%d", n)
	case region:
		text = fmt.Sprintf("cn-town-%d", n)
	case address:
		return fmt.Sprintf("https://api%d.example.com/", n), fmt.Sprintf("https://api%d.example.com", n)
	case host:
		text = fmt.Sprintf("host%d.example.com:8%d", n, n)
	case duration:
		return fmt.Sprint(60 * (n + 1)), fmt.Sprintf("%dm0s", n+1)
	case toggle:
		return []string{"yes", "OFF"}[n], []string{"true", "false"}[n]
	case number:
		text = fmt.Sprint(n)
	case choice:
		text = s.choices[n]
	case path:
		text = fmt.Sprintf("/path/%d", n)
	default:
		text = fmt.Sprintf("name%d", n)
	}
	if s.key == "provider" {
		text = []string{"e2b", "local"}[n]
	}
	return text, text
}

// A spot is a place that a setting can be in, first ones first.
type spot struct {
	name string
	put  func(w world, s *setting, text string) bool // false: the setting cannot be there
	says func(s *setting) string
}

func inFile(file, head string, credentials bool) func(world, *setting, string) bool {
	return func(w world, s *setting, text string) bool {
		if (s.place == inCredentials) != credentials || s.place == nowhere {
			return false
		}
		w.files[file] += fmt.Sprintf("%s%s = %q\n", head, s.key, text)
		return true
	}
}

var spots = []spot{
	{"call", func(w world, s *setting, text string) bool {
		if s.kind == duration {
			return false // as the caller gives it
		}
		w.opts[s.key] = Override{text, "option X"}
		return true
	}, func(*setting) string { return "option X" }},
	{"environment", func(w world, s *setting, text string) bool {
		if len(s.vars) == 0 {
			return false
		}
		w.env[s.vars[0]] = text
		return true
	}, func(s *setting) string { return "environment " + s.vars[0] }},
	{"profile", inFile("~/.config/sandbox/config.toml", "[profiles.work]\n", false),
		func(*setting) string { return "~/.config/sandbox/config.toml line 2, profile \"work\"" }},
	{"profile credentials", inFile("~/.config/sandbox/credentials.toml", "[work]\n", true),
		func(*setting) string { return "~/.config/sandbox/credentials.toml line 2, profile \"work\"" }},
	{"top", func(w world, s *setting, text string) bool {
		if s.place != inConfig {
			return false
		}
		file := "~/.config/sandbox/config.toml"
		w.files[file] = fmt.Sprintf("%s = %q\n", s.key, text) + w.files[file]
		return true
	}, func(*setting) string { return "~/.config/sandbox/config.toml line 1" }},
	{"default credentials", func(w world, s *setting, text string) bool {
		if s.place != inCredentials {
			return false
		}
		file := "~/.config/sandbox/credentials.toml"
		w.files[file] = fmt.Sprintf("[default]\n%s = %q\n", s.key, text) + w.files[file]
		return true
	}, func(*setting) string { return "~/.config/sandbox/credentials.toml line 2" }},
	{"predecessor's variables", func(w world, s *setting, text string) bool {
		if len(s.vars) == 0 {
			return false
		}
		w.files["~/.ebx/.env"] = s.vars[0] + "=" + text + "\n"
		return true
	}, func(s *setting) string { return "~/.ebx/.env line 1, " + s.vars[0] }},
	{"predecessor", func(w world, s *setting, text string) bool {
		switch s.key {
		case "api_key", "api_url", "domain", "region", "http_timeout", "max_retries", "http2":
			w.files["~/.ebx/config.toml"] = fmt.Sprintf("[transport]\n%s = %q\n", s.key, text)
			return true
		}
		return false
	}, func(*setting) string { return "~/.ebx/config.toml line 2" }},
	{"project", func(w world, s *setting, text string) bool {
		if s.place != inConfig || !s.project {
			return false
		}
		w.files["../sandbox.toml"] = fmt.Sprintf("# ours\n%s = %q\n", s.key, text)
		return true
	}, func(*setting) string { return "../sandbox.toml line 2" }},
	{"project variables", func(w world, s *setting, text string) bool {
		if len(s.vars) == 0 || !s.project {
			return false
		}
		w.files["../sandbox.toml"] += "" // what makes that folder the project's
		w.files["../.env"] = "\n\n" + s.vars[0] + "=" + text + "\n"
		return true
	}, func(s *setting) string { return "../.env line 3, " + s.vars[0] }},
}

func newWorld() world {
	return world{env: map[string]string{"SANDBOX_PROFILE": "work"}, files: map[string]string{
		"~/.config/sandbox/config.toml": "[profiles.work]\n",
	}, opts: map[string]Override{}}
}

// put writes s to a place; the table of the profile is written once only.
func (w world) put(s *setting, at spot, text string) bool {
	if at.name == "profile" {
		w.files["~/.config/sandbox/config.toml"] = ""
	}
	return at.put(w, s, text)
}

// Each setting is found in each place it can be in, and the first place counts;
// one that is blank there is not.
func TestOrder(t *testing.T) {
	n := 0
	for i := range table {
		s := &table[i]
		switch {
		case s.kind == foreign, s.key == "profile", s.key == "config_dir", s.key == "env_file", s.key == "isolation":
			continue // read by others, or by tests of their own
		}
		for hi, high := range spots {
			for lo, low := range spots {
				if lo < hi {
					continue
				}
				for _, blank := range []bool{false, true} {
					if blank && lo > hi+2 {
						continue // the next ones are enough
					}
					a, wantA := sample(s, 0)
					b, wantB := sample(s, 1)
					w := newWorld()
					if blank {
						a = "  "
					}
					if !w.put(s, high, a) {
						continue
					}
					if lo > hi && !w.put(s, low, b) {
						continue
					}
					want, source := wantA, high.says(s)
					switch {
					case blank && lo > hi:
						want, source = wantB, low.says(s)
					case blank:
						want, source = s.def, "default"
					}
					if low.name == "top" && lo > hi { // it pushes the profile down
						source = strings.Replace(source, "line 2, profile", "line 3, profile", 1)
					}
					if low.name == "default credentials" && lo > hi {
						source = strings.Replace(source, "line 2, profile", "line 4, profile", 1)
					}
					if blank && high.name == "profile" && low.name == "top" {
						source = low.says(s)
					}
					c, err := Load(w.build(t))
					if err != nil {
						t.Fatalf("%s in %s and %s: %v", s.key, high.name, low.name, err)
					}
					if v := c.Value(s.key); v.Text() != want || v.Source != source {
						t.Errorf("%s in %s and %s (blank %v): %q from %q, want %q from %q", s.key, high.name, low.name, blank, v.Text(), v.Source, want, source)
					}
					n++
				}
			}
		}
	}
	if n < 800 {
		t.Errorf("only %d cases", n)
	}
}

// Every alias gives its setting; the canonical name beats it, and where they
// differ in one layer the strict ones refuse.
func TestAliases(t *testing.T) {
	for i := range table {
		s := &table[i]
		if s.kind == foreign || len(s.vars) < 2 {
			continue
		}
		a, want := sample(s, 0)
		b, _ := sample(s, 1)
		for _, alias := range s.vars[1:] {
			c := world{env: map[string]string{alias: a}}.load(t)
			if v := c.Value(s.key); v.Text() != want || v.Source != "environment "+alias {
				t.Errorf("%s: %q from %q", alias, v.Text(), v.Source)
			}
			c = world{env: map[string]string{s.vars[0]: a, alias: a}}.load(t)
			if v, err := c.usableValue(s.key); err != nil || v.Source != "environment "+s.vars[0] {
				t.Errorf("%s, equal: %v from %q", alias, err, v.Source)
			}
			c, err := Load(world{env: map[string]string{s.vars[0]: a, alias: b}}.build(t))
			if err == nil {
				_, err = c.usableValue(s.key)
			}
			if s.strict() {
				wantError(t, err, "E8007", s.vars[0], alias, "differ")
				if s.secret() && (strings.Contains(err.Error(), a) || strings.Contains(err.Error(), b)) {
					t.Errorf("%v shows the secret", err)
				}
			} else if v := c.Value(s.key); err != nil || v.Text() != want {
				t.Errorf("%s, differs: %v, %q", alias, err, v.Text())
			}
			// The same two in different layers are no contradiction.
			if s.project {
				w := world{env: map[string]string{alias: a}, files: map[string]string{".env": s.vars[0] + "=" + b}}
				if v, err := w.load(t).usableValue(s.key); err != nil || v.Text() != want {
					t.Errorf("%s in two layers: %v, %q", alias, err, v.Text())
				}
			}
		}
	}
}

func TestValues(t *testing.T) {
	for _, c := range []struct{ variable, text, want, bad string }{
		{"SANDBOX_LIFETIME", " 90 ", "1m30s", ""},
		{"SANDBOX_LIFETIME", "1h", "1h0m0s", ""},
		{"SANDBOX_LIFETIME", "soon", "", "90s"},
		{"SANDBOX_LIFETIME", "-3s", "", "positive"},
		{"SANDBOX_LIFETIME", "0", "", "positive"},
		{"SANDBOX_LIFETIME", "99999999999999999999", "", "duration"},
		{"SANDBOX_HTTP2", "1", "true", ""},
		{"SANDBOX_HTTP2", "No", "false", ""},
		{"SANDBOX_HTTP2", "perhaps", "", "on or off"},
		{"SANDBOX_MAX_RETRIES", "10", "10", ""},
		{"SANDBOX_MAX_RETRIES", "11", "", "0 to 10"},
		{"SANDBOX_LOG_LEVEL", "WARN", "warn", ""},
		{"SANDBOX_LOG_LEVEL", "loud", "", "debug, info, warn, error"},
		{"SANDBOX_TEMPLATE", "a b", "", "white space"},
		{"SANDBOX_TEMPLATE", "a\x00b", "", "control"},
		{"SANDBOX_TEMPLATE", "\xff", "", "UTF-8"},
		{"SANDBOX_TEMPLATE", strings.Repeat("x", maxValue+1), "", "16 KiB"},
		{"SANDBOX_REGION", "cn-shanghai", "cn-shanghai", ""},
		{"SANDBOX_REGION", "evil.example/#", "", "region"},
		{"SANDBOX_REGION", "a--b", "", "region"},
		{"SANDBOX_API_URL", "https://API.example.com/v1//", "https://api.example.com/v1", ""},
		{"SANDBOX_API_URL", "unix:/run/s.sock", "unix:/run/s.sock", ""},
		{"SANDBOX_API_URL", "unix:///run/s.sock", "unix:/run/s.sock", ""},
		{"SANDBOX_API_URL", "unix:run/s.sock", "", "unix:/path"},
		{"SANDBOX_API_URL", "http://[::1]:3000", "http://[::1]:3000", ""},
		{"SANDBOX_API_URL", "ftp://x", "", "https://HOST"},
		{"SANDBOX_API_URL", "https://", "", "HOST"},
		{"SANDBOX_API_URL", "https://user:pw@x", "", "user"},
		{"SANDBOX_API_URL", "https://x/?q=1", "", "query"},
		{"SANDBOX_API_URL", "https://a b", "", "address"},
		{"SANDBOX_DOMAIN", "e2b.app:8443", "e2b.app:8443", ""},
		{"SANDBOX_DOMAIN", "https://e2b.app", "", "HOST"},
		{"SANDBOX_DOMAIN", "e2b.app/x", "", "HOST"},
		{"SANDBOX_DOMAIN", "e2b.app:70000", "", "port"},
		{"SANDBOX_DOMAIN", "[::1]:80", "[::1]:80", ""},
		{"SANDBOX_API_KEY", " e2b_0123\n", "e2b_0123", ""},
		{"SANDBOX_API_KEY", `"e2b_012345678"`, "", "quotes"},
		{"SANDBOX_API_KEY", `'e2b_012345678`, "", "quotes"},
		{"SANDBOX_API_KEY", "e2b_0123 45678", "", "white space"},
		{"SANDBOX_API_KEY", "e2b_0123\n45678", "", "control"},
		{"SANDBOX_API_KEY", "schlüssel-123", "", "ASCII"},
	} {
		cfg, err := Load(world{env: map[string]string{c.variable: c.text}}.build(t))
		var v Value
		if err == nil {
			v, err = cfg.usableValue(findVar(c.variable).key)
		}
		if c.bad == "" {
			if err != nil || v.Text() != c.want {
				t.Errorf("%s=%q: %q, %v; want %q", c.variable, c.text, v.Text(), err, c.want)
			}
			continue
		}
		wantError(t, err, "E8007", c.variable, c.bad)
		if err != nil && findVar(c.variable).secret() && strings.Contains(err.Error(), "0123") {
			t.Errorf("%v shows the key", err)
		}
	}
}

// A wrong value that another one hides does no harm.
func TestHiddenMistakes(t *testing.T) {
	w := world{env: map[string]string{"SANDBOX_LIFETIME": "soon"}, opts: map[string]Override{"lifetime": {"5m0s", "option Lifetime"}}}
	if d := w.load(t).Duration("lifetime"); d.Minutes() != 5 {
		t.Errorf("got %v", d)
	}
	// Nor does one of a provider that is not used.
	w = world{env: map[string]string{"SANDBOX_PROVIDER": "local", "E2B_API_KEY": `"x"`, "SANDBOX_API_KEY": "another-key", "SANDBOX_REGION": "?"}}
	c := w.load(t)
	if s, err := c.ProviderSettings("local"); err != nil || len(s) != 0 {
		t.Errorf("local: %v, %v", s, err)
	}
	_, err := c.ProviderSettings("e2b")
	wantError(t, err, "E8007")
}

func TestNearest(t *testing.T) {
	for in, want := range map[string]string{"tempalte": "template", "lifetimes": "lifetime", "zzzzzz": "", "Provider": "provider"} {
		if got := nearest(in, []string{"template", "lifetime", "provider"}); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}
