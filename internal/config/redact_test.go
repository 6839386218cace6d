package config

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/redact"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// everySource puts a secret wherever one may be, and where none should.
func everySource(key string) map[string]world {
	q := fmt.Sprintf("%q", key)
	at := func(file, text string) world { return world{files: map[string]string{file: text}} }
	sources := map[string]world{
		"option":               {opts: map[string]Override{"api_key": {key, "option APIKey"}}},
		"credentials":          at(credsFile, "[default]\napi_key = "+q),
		"profile":              {env: map[string]string{"SANDBOX_PROFILE": "work"}, files: map[string]string{credsFile: "[work]\napi_key = " + q}},
		"AccessKey":            at(credsFile, "[default]\naccess_key_secret = "+q),
		"predecessor":          at("~/.ebx/config.toml", "[transport]\napi_key = "+q),
		"predecessor's .env":   at("~/.ebx/.env", "E2B_API_KEY="+key),
		".env":                 at(".env", "E2B_API_KEY="+key),
		".env, quotes":         at(".env", "E2B_API_KEY=\""+key),
		".env, after quotes":   at(".env", "E2B_API_KEY='x'"+key),
		"config.toml":          at(userFile, "api_key = "+q),
		"config.toml, command": at(userFile, "api_key_command = "+q),
		"config.toml, syntax":  at(userFile, "api_key = "+key+" "+key),
		"credentials, syntax":  at(credsFile, "[default]\napi_key = "+key+" "+key),
		"credentials, section": at(credsFile, "api_key = "+q),
		"credentials, name":    at(credsFile, "[default]\napi_kee = "+q),
		"sandbox.toml":         at("sandbox.toml", "api_key = "+q),
		"sandbox.toml, syntax": at("sandbox.toml", "api_key = "+key+" "+key),
		"user of an address":   {env: map[string]string{"E2B_API_URL": "https://u:" + url.QueryEscape(key) + "@h.example", "E2B_DOMAIN": "x"}},
		"quotes":               {env: map[string]string{"SANDBOX_API_KEY": "'" + key + "'"}},
		"white space":          {env: map[string]string{"SANDBOX_API_KEY": key + " " + key}},
		"two that differ":      {env: map[string]string{"SANDBOX_API_KEY": key, "E2B_API_KEY": key + "x"}},
	}
	for i := range table {
		if s := &table[i]; s.secret() {
			for _, v := range s.vars {
				sources[v] = world{env: map[string]string{v: key}}
			}
		}
	}
	return sources
}

// provocations are settings that make errors of what else is there.
func provocations() []world {
	return []world{
		{},
		{env: map[string]string{"SANDBOX_LIFETIME": "soon", "SANDBOX_LOG_LEVEL": "?"}},
		{env: map[string]string{"SANDBOX_REGION": "cn-beijing", "SANDBOX_API_URL": "https://api.cn-shanghai.sandbox.aliyuncs.com"}},
		{env: map[string]string{"SANDBOX_API_URL": "http://control.example", "SANDBOX_DOMAIN": "x.example"}},
		{env: map[string]string{"SANDBOX_API_URL": "https://control.example"}},
		{env: map[string]string{"SANDBOX_OFFLINE": "1"}},
		{env: map[string]string{"SANDBOX_FC_EDITION": "9", "SANDBOX_PROVIDER": "fc"}},
		{env: map[string]string{"SANDBOX_PROFILE": "wrok"}},
		{files: map[string]string{"sandbox.toml": "domain = 'evil.example'\nprovider = 'acme'"}},
		{files: map[string]string{userFile: "tempalte = 1"}},
		{env: map[string]string{"SANDBOX_ENV_FILE": "gone"}},
	}
}

func merge(a, b world) world {
	out := world{env: map[string]string{}, files: map[string]string{}, opts: map[string]Override{}}
	for _, w := range []world{b, a} { // a's count
		for k, v := range w.env {
			out.env[k] = v
		}
		for k, v := range w.files {
			out.files[k] = v
		}
		for k, v := range w.opts {
			out.opts[k] = v
		}
	}
	return out
}

// written is everything that is said about a world: logs, errors with their
// causes and hints, values as they print.
func written(t testing.TB, w world) string {
	var out bytes.Buffer
	say := func(err error) {
		var walk func(error)
		walk = func(err error) {
			if err == nil {
				return
			}
			fmt.Fprintf(&out, "%v\n%+v\n%#v\n%q\n", err, err, err, err)
			if e, ok := err.(*errdefs.Error); ok {
				fmt.Fprintln(&out, e.Message, e.Suggestion, e.Hint(), e.Op)
			}
			switch x := err.(type) {
			case interface{ Unwrap() []error }:
				for _, e := range x.Unwrap() {
					walk(e)
				}
			default:
				walk(errors.Unwrap(err))
			}
		}
		walk(err)
	}
	c, err := Load(w.build(t))
	say(err)
	if err != nil {
		return out.String()
	}
	for _, h := range []slog.Handler{
		slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}), slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}),
	} {
		c.Report(slog.New(h))
	}
	name, reason := c.Provider()
	fmt.Fprintln(&out, name, reason)
	for i := range table {
		v := c.Value(table[i].key)
		fmt.Fprintf(&out, "%s %v %+v %q %s\n", v.Key, v, v, v, v.Source)
	}
	for _, p := range []string{name, "e2b", "fc", "express", "opensandbox", "docker", "local", "acme"} {
		s, err := c.ProviderSettings(p)
		say(err)
		for k, v := range s {
			if k != "api_key" {
				fmt.Fprintln(&out, k, v)
			}
		}
	}
	return out.String()
}

// No secret is in anything that is written, from wherever it comes and
// whatever goes wrong.
func FuzzSecrets(f *testing.F) {
	f.Add("0123456789abcdefghij", uint16(0))
	f.Add("e2b_0123456789abcdef0123", uint16(80))
	f.Add(`a/b+c=d&e"f\g%h`, uint16(200))
	f.Fuzz(func(t *testing.T, key string, which uint16) {
		// Shorter ones, and those of one letter, are in every text.
		if len(key) < 12 || len(key) > 200 || strings.Trim(key, key[:1]) == "" {
			return
		}
		for _, r := range key { // what an environment and a file can carry
			if r < ' ' || r > '~' {
				return
			}
		}
		key = "k" + strings.TrimSpace(key) + "z"
		sources, provoke := everySource(key), provocations()
		names := slices.Sorted(maps.Keys(sources))
		name, i := names[int(which)%len(names)], int(which)/len(names)%len(provoke)
		text := written(t, merge(sources[name], provoke[i]))
		for _, form := range []string{key, url.QueryEscape(key), base64.StdEncoding.EncodeToString([]byte(key)), fmt.Sprintf("%q", key)} {
			if strings.Contains(text, form) {
				t.Fatalf("%s, provocation %d shows %q:\n%s", name, i, form, text)
			}
		}
	})
}

func TestSecretsAreNotWritten(t *testing.T) {
	for i, provoke := range provocations() {
		key := fmt.Sprintf("planted-secret-no-%d-xyzzy", i)
		for name, source := range everySource(key) {
			if text := written(t, merge(source, provoke)); strings.Contains(text, key) {
				t.Errorf("%s, provocation %d:\n%s", name, i, text)
			}
		}
	}
}

// The hint of a secret is enough to tell two apart.
func TestValueString(t *testing.T) {
	c := world{env: map[string]string{"E2B_API_KEY": "e2b_0123456789abcdef0123", "SANDBOX_REGION": "cn-x"}}.load(t)
	if got := c.Value("api_key").String(); got != "e2b***23" {
		t.Errorf("got %q", got)
	}
	if got := c.Value("region").String(); got != "cn-x" {
		t.Errorf("got %q", got)
	}
	// What was loaded is known, usable or not.
	world{env: map[string]string{"SANDBOX_API_KEY": `"loaded-in-quotes"`, "ALICLOUD_SECRET_KEY": "loaded-secret-key"}}.load(t)
	if got := redact.String("loaded-in-quotes and loaded-secret-key"); got != "*** and ***" {
		t.Errorf("got %q", got)
	}
	o := world{files: map[string]string{credsFile: "[default]\napi_key_command = ['pass', 'show', 'x']"}}.build(t)
	o.Lookup = func(string) (string, bool) { return "", false }
	c, err := Load(o)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Value("api_key").String(); got != "(from pass)" {
		t.Errorf("got %q", got)
	}
	if !filepath.IsAbs(o.Home) {
		t.Error(o.Home)
	}
}

// Report says what else was found.
func TestReport(t *testing.T) {
	var out bytes.Buffer
	o := world{env: map[string]string{
		"SANDBOX_TEMPLATE": "a", "EBX_TEMPLATE": "b", "AccessKey": "x", "AccessSecret": "y",
	}, files: map[string]string{"~/.ebx/.env": "SANDBOX_LIFETIME=5m", ".env": "SANDBOX_TEMPALTE=x\nDOCKER_HOST=x"}}.build(t)
	o.Environ = func() []string {
		return []string{"SANDBOX_LIFETIEM=1", "SANDBOX_TEMPLATE_INDX=x", "SANDBOX_TEMPLATE_INDEX=https://u:hidden@h/i", "SANDBOX_TEMPLATE_FILE=f", "SANDBOX_WORKER_FD=3", "PATH=/bin"}
	}
	c, err := Load(o)
	if err != nil {
		t.Fatal(err)
	}
	c.Report(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	for _, want := range []string{
		`level=WARN msg="two names of a setting differ" used="environment SANDBOX_TEMPLATE" "not used"="environment EBX_TEMPLATE"`,
		`level=WARN msg="variable is out of use" variable=AccessKey instead=ALIBABA_CLOUD_ACCESS_KEY_ID`,
		`level=WARN msg="settings of the predecessor are used; move them to the new files" from=~/.ebx to=~/.config/sandbox`,
		`level=DEBUG msg="variable not known" variable=SANDBOX_LIFETIEM nearest=SANDBOX_LIFETIME`,
		`level=DEBUG msg="variable not known" variable=SANDBOX_TEMPLATE_INDX nearest=SANDBOX_TEMPLATE_INDEX`,
		`level=DEBUG msg="variable not known" variable=SANDBOX_TEMPALTE source="./.env line 1, SANDBOX_TEMPALTE"`,
		`level=DEBUG msg="a project cannot set a variable; it is not used" variable=DOCKER_HOST`,
		`level=DEBUG msg="provider chosen" provider=local reason="no provider and no API key is configured"`,
		`level=DEBUG msg="an AccessKey is there, which alone chooses no provider" source="environment AccessKey"`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "SANDBOX_WORKER_FD") {
		t.Error("a variable of the worker is not unknown")
	}
	for _, never := range []string{"SANDBOX_TEMPLATE_INDEX ", "SANDBOX_TEMPLATE_FILE", "hidden"} {
		if strings.Contains(out.String(), never) {
			t.Errorf("%q in\n%s", never, &out)
		}
	}
}
