package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A secret of the user is never for an address of the project.
func TestTrust(t *testing.T) {
	userKeys := map[string]world{
		"option":      {opts: map[string]Override{"api_key": {"key-of-the-user", "option APIKey"}}},
		"environment": {env: map[string]string{"E2B_API_KEY": "key-of-the-user"}},
		"credentials": {files: map[string]string{"~/.config/sandbox/credentials.toml": "[default]\napi_key='key-of-the-user'"}},
		"command":     {files: map[string]string{"~/.config/sandbox/credentials.toml": "[default]\napi_key_command=['no-such-program-here']"}},
		"predecessor": {files: map[string]string{"~/.ebx/.env": "E2B_API_KEY=key-of-the-user"}},
	}
	addresses := map[string]map[string]string{
		"api_url":         {"sandbox.toml": "api_url = 'https://api.evil.example'"},
		"domain":          {"sandbox.toml": "domain = 'evil.example'"},
		"sandbox_url":     {"sandbox.toml": "sandbox_url = 'https://evil.example'"},
		".env api_url":    {".env": "E2B_API_URL=https://api.evil.example"},
		".env domain":     {".env": "SANDBOX_DOMAIN=evil.example"},
		".env direct":     {".env": "E2B_SANDBOX_URL=https://evil.example"},
		".env debug":      {".env": "E2B_DEBUG=1"},
		"loopback":        {"sandbox.toml": "api_url = 'http://127.0.0.1:3000'\nsandbox_url = 'http://127.0.0.1:3000'"},
		"with key of its": {".env": "E2B_API_KEY=key-of-the-project\nE2B_DOMAIN=evil.example"},
	}
	for who, user := range userKeys {
		for what, files := range addresses {
			t.Run(who+" "+what, func(t *testing.T) {
				w := world{env: user.env, opts: user.opts, files: map[string]string{}}
				for _, m := range []map[string]string{user.files, files} {
					for k, v := range m {
						w.files[k] = v
					}
				}
				c := w.load(t)
				name, _ := c.Provider()
				if name != "e2b" {
					t.Errorf("provider %s", name)
				}
				s, err := c.ProviderSettings(name)
				wantError(t, err, "E8007", "comes from ./", "the key from", "confirm it", "config.toml")
				if s != nil {
					t.Errorf("settings in spite of that: %v", s)
				}
				if err != nil && strings.Contains(err.Error(), "key-of-the") {
					t.Errorf("%v shows the key", err)
				}
			})
		}
	}
	for _, c := range []struct {
		name, provider string
		w              world
		ok             bool
	}{
		{"key of another file", "e2b", world{files: map[string]string{"sandbox.toml": "domain = 'evil.example'", ".env": "E2B_API_KEY=key-of-the-developer"}}, false},
		{"debug beside an address of the user", "e2b", world{files: map[string]string{".env": "E2B_DEBUG=1"}, env: map[string]string{"E2B_API_KEY": "key-of-the-user", "E2B_API_URL": "https://api.corp.example"}}, false},
		{"its own key", "e2b", world{files: map[string]string{".env": "E2B_API_KEY=key-of-the-project\nE2B_DOMAIN=corp.example"}}, true},
		{"its own key, the user's address", "e2b", world{files: map[string]string{".env": "E2B_API_KEY=key-of-the-project"}, env: map[string]string{"E2B_DOMAIN": "corp.example"}}, true},
		{"the user confirms", "e2b", world{files: map[string]string{"sandbox.toml": "domain = 'corp.example'", "~/.config/sandbox/config.toml": "domain = 'corp.example'"}, env: map[string]string{"E2B_API_KEY": "key-of-the-user"}}, true},
		{"half confirmed", "e2b", world{files: map[string]string{"sandbox.toml": "domain = 'evil.example'"}, env: map[string]string{"E2B_API_KEY": "key-of-the-user", "E2B_API_URL": "https://api.corp.example"}}, false},
		{"no key", "e2b", world{files: map[string]string{"sandbox.toml": "domain = 'corp.example'"}}, true},
		{"AccessKey", "fc", world{files: map[string]string{"sandbox.toml": "domain = 'evil.example'"}, env: map[string]string{"ALIBABA_CLOUD_ACCESS_KEY_ID": "LTAIx", "ALIBABA_CLOUD_ACCESS_KEY_SECRET": "secret-of-the-user"}}, false},
		{"AccessKey is not for e2b", "e2b", world{files: map[string]string{".env": "E2B_API_KEY=key-of-the-project\nE2B_DOMAIN=corp.example"}, env: map[string]string{"ALIBABA_CLOUD_ACCESS_KEY_ID": "LTAIx", "ALIBABA_CLOUD_ACCESS_KEY_SECRET": "secret-of-the-user"}}, true},
		{"region", "fc", world{files: map[string]string{"sandbox.toml": "region = 'cn-shanghai'"}, env: map[string]string{"SANDBOX_API_KEY": "key-of-the-user", "SANDBOX_PROVIDER": "express"}}, true},
		{"opensandbox", "opensandbox", world{files: map[string]string{".env": "OPEN_SANDBOX_DOMAIN=evil.example"}, env: map[string]string{"OPEN_SANDBOX_API_KEY": "key-of-the-user"}}, false},
		{"opensandbox protocol", "opensandbox", world{files: map[string]string{".env": "OPEN_SANDBOX_PROTOCOL=http"}, env: map[string]string{"OPEN_SANDBOX_API_KEY": "key-of-the-user", "OPEN_SANDBOX_DOMAIN": "corp.example"}}, false},
		{"opensandbox of the project", "opensandbox", world{files: map[string]string{".env": "OPEN_SANDBOX_DOMAIN=corp.example\nOPEN_SANDBOX_API_KEY=key-of-the-project"}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := c.w.load(t).ProviderSettings(c.provider)
			if c.ok && err != nil {
				t.Error(err)
			}
			if !c.ok {
				wantError(t, err, "E8007", "comes from ./", "the key from ")
				if s != nil {
					t.Errorf("settings in spite of that: %v", s)
				}
			}
		})
	}
}

// What a project may say, and what not.
func TestProject(t *testing.T) {
	for _, c := range []struct{ name, file, text, says string }{
		{"ca_file", "sandbox.toml", "ca_file = '/x'", "./sandbox.toml line 1: a project cannot set ca_file"},
		{"insecure", "sandbox.toml", "\n[x]\n", `"x" is not a setting`},
		{"insecure", "sandbox.toml", "insecure = true", "cannot set insecure"},
		{"docker", "sandbox.toml", "[docker]\nhost = 'tcp://x'", "line 2: a project cannot set docker.host"},
		{"plugin", "sandbox.toml", "[plugin.acme]\npath = '/x'", "cannot set plugin.acme"},
		{"kubeconfig", "sandbox.toml", "k8s.kubeconfig = '/x'", "cannot set k8s.kubeconfig"},
		{"profiles", "sandbox.toml", "[profiles.x]\nregion = 'a'", `"profiles" is not a setting`},
		{"default_profile", "sandbox.toml", "default_profile = 'x'", `"default_profile" is not a setting`},
		{"env_file", "sandbox.toml", "env_file = '/etc/passwd'", "cannot set env_file"},
		{"secret", "sandbox.toml", "\napi_key = 'key-in-the-wrong-file'", "line 2: api_key is a secret"},
		{"command", "sandbox.toml", "api_key_command = ['rm']", "api_key_command is a secret"},
		{"profile", ".env", "SANDBOX_PROFILE=x", "./.env line 1, SANDBOX_PROFILE: a project cannot set SANDBOX_PROFILE"},
		{"insecure variable", ".env", "SANDBOX_INSECURE=1", "cannot set SANDBOX_INSECURE"},
		{"config folder", ".env", "SANDBOX_CONFIG_DIR=/x", "cannot set SANDBOX_CONFIG_DIR"},
		{"catalog", ".env", "SANDBOX_TEMPLATE_INDEX=https://evil.example/i", "cannot set SANDBOX_TEMPLATE_INDEX"},
		{"catalog in a file", "sandbox.toml", "template_index = 'x'", "template_index"},
		{"plugin as provider", "sandbox.toml", "provider = 'acme'", "provider that is built in"},
		{"plugin as provider", ".env", "SANDBOX_PROVIDER=acme", "provider that is built in"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Load(world{files: map[string]string{c.file: c.text}}.build(t))
			wantError(t, err, "E8007", c.says)
			if err != nil && strings.Contains(err.Error(), "wrong-file") {
				t.Errorf("%v shows the secret", err)
			}
		})
	}
	// Variables of other programs in .env are theirs.
	c := world{files: map[string]string{".env": "SSL_CERT_FILE=/x\nDOCKER_HOST=tcp://x\nKUBECONFIG=/x\nHTTPS_PROXY=http://x\nFOO=bar\nSANDBOX_TEMPLATE=mine"}}.load(t)
	if c.Text("ca_file")+c.Text("docker.host")+c.Text("k8s.kubeconfig") != "" || c.Text("template") != "mine" {
		t.Error("taken from .env")
	}
	// Isolation can only grow.
	for _, c := range []struct{ user, project, want string }{
		{"", "gvisor", "gvisor"}, {"container", "microvm", "microvm"}, {"microvm", "container", "microvm"}, {"gvisor", "gvisor", "gvisor"},
	} {
		cfg := world{env: map[string]string{"SANDBOX_ISOLATION": c.user}, files: map[string]string{"sandbox.toml": "isolation='" + c.project + "'"}}.load(t)
		if got := cfg.Text("isolation"); got != c.want {
			t.Errorf("user %q, project %q: %q", c.user, c.project, got)
		}
	}
}

// A project does not take a key to another service than the one it is of.
func TestTrustOfService(t *testing.T) {
	const key = "key-of-somebody"
	userKey := map[string]string{"E2B_API_KEY": key}
	with := func(more ...string) map[string]string {
		env := map[string]string{"E2B_API_KEY": key}
		for i := 0; i < len(more); i += 2 {
			env[more[i]] = more[i+1]
		}
		return env
	}
	toml := func(text string, more ...string) map[string]string {
		files := map[string]string{"sandbox.toml": text}
		for i := 0; i < len(more); i += 2 {
			files[more[i]] = more[i+1]
		}
		return files
	}
	for _, c := range []struct {
		name string
		w    world
		want string   // provider
		says []string // of the error; nil: none
	}{
		{"provider", world{env: userKey, files: toml("provider = 'fc'")}, "fc", []string{"provider fc comes from ./sandbox.toml line 1", "the key from environment E2B_API_KEY", "one of e2b", "config.toml"}},
		{"provider and region", world{env: userKey, files: toml("provider = 'fc'\nregion = 'cn-x'")}, "fc", []string{"provider fc comes from"}},
		{"other name", world{env: userKey, files: toml("provider = 'express'")}, "fc", []string{"provider express comes from"}},
		{"region", world{env: userKey, files: toml("region = 'cn-x'")}, "fc", []string{"region cn-x comes from ./sandbox.toml line 1", "one of e2b"}},
		{"variable", world{env: userKey, files: map[string]string{".env": "SANDBOX_REGION=cn-x"}}, "fc", []string{"region cn-x comes from ./.env line 1, SANDBOX_REGION"}},
		{"the other way", world{env: with("SANDBOX_REGION", "cn-x"), files: toml("provider = 'e2b'")}, "e2b", []string{"provider e2b comes from", "one of fc"}},
		{"key of the developer", world{files: toml("provider = 'fc'", ".env", "E2B_API_KEY="+key)}, "fc", []string{"the key from ./.env line 1, E2B_API_KEY", "beside the key"}},
		{"command", world{files: toml("provider = 'fc'", "~/.config/sandbox/credentials.toml", "[default]\napi_key_command = ['no-such-program-here']")}, "fc", []string{"the key from ~/.config"}},

		{"same provider", world{env: userKey, files: toml("provider = 'e2b'")}, "e2b", nil},
		{"local", world{env: userKey, files: toml("provider = 'local'")}, "local", nil},
		{"confirmed by provider", world{env: with("SANDBOX_PROVIDER", "fc"), files: toml("provider = 'fc'\nregion = 'cn-x'")}, "fc", nil},
		{"confirmed by region", world{env: with("SANDBOX_REGION", "cn-y"), files: toml("provider = 'fc'\nregion = 'cn-x'")}, "fc", nil},
		{"confirmed by profile", world{env: with("SANDBOX_PROFILE", "p"), files: toml("provider = 'fc'", "~/.config/sandbox/config.toml", "[profiles.p]\nprovider = 'express'")}, "fc", nil},
		{"address of the user", world{env: with("E2B_API_URL", "https://api.corp.example"), files: toml("provider = 'fc'")}, "fc", nil},
		{"beside the key", world{files: map[string]string{".env": "SANDBOX_PROVIDER=fc\nE2B_API_KEY=" + key}}, "fc", nil},
		{"confirmed beside the key", world{files: toml("region = 'cn-x'", ".env", "SANDBOX_PROVIDER=fc\nE2B_API_KEY="+key)}, "fc", nil},
		{"no key", world{files: toml("provider = 'fc'")}, "fc", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := c.w.load(t)
			name, _ := cfg.Provider()
			if name != c.want {
				t.Errorf("provider %s, want %s", name, c.want)
			}
			s, err := cfg.ProviderSettings(name)
			if c.says == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantError(t, err, "E8007", append(c.says, "a project does not decide where your key is sent", "confirm it")...)
			if s != nil || strings.Contains(withHint(err), key) {
				t.Errorf("settings in spite of that, or the key is shown: %v, %v", s, err)
			}
		})
	}
}

// Secrets of the user, other than the key, go only where the user decides.
func TestCheckSecrets(t *testing.T) {
	env := map[string]string{"E2B_API_KEY": "key-of-the-user"}
	file := func(name, text string) map[string]string { return map[string]string{name: text} }
	for _, c := range []struct {
		name, provider string
		w              world
		says           string // empty: no error
	}{
		{"api_url", "e2b", world{files: file(".env", "E2B_API_URL=https://api.evil.example\nE2B_API_KEY=key-of-the-project")}, "api_url https://api.evil.example comes from ./.env line 1, E2B_API_URL"},
		{"domain", "e2b", world{files: file("sandbox.toml", "domain = 'evil.example'")}, "comes from ./sandbox.toml line 1"},
		{"sandbox_url", "fc", world{files: file("sandbox.toml", "sandbox_url = 'https://evil.example'")}, "sandbox_url https://evil.example comes from"},
		{"debug", "e2b", world{env: map[string]string{"E2B_API_KEY": "key-of-the-user", "E2B_API_URL": "https://api.corp.example"}, files: file(".env", "E2B_DEBUG=1")}, "comes from ./.env line 1, E2B_DEBUG"},
		{"key", "e2b", world{files: file(".env", "E2B_API_KEY=key-of-the-project")}, "api_key comes from ./.env line 1, E2B_API_KEY"},
		{"provider", "fc", world{files: file("sandbox.toml", "provider = 'fc'"), env: env}, "provider fc comes from ./sandbox.toml line 1"},
		{"region", "fc", world{files: file("sandbox.toml", "region = 'cn-x'"), env: env}, "region cn-x comes from"},
		{"opensandbox", "opensandbox", world{files: file(".env", "OPEN_SANDBOX_DOMAIN=evil.example")}, "opensandbox.domain evil.example comes from"},
		{"wrong", "e2b", world{env: map[string]string{"E2B_API_URL": "https://control.example"}}, "neither domain nor sandbox_url"},

		{"user", "e2b", world{env: env}, ""},
		{"address of the user", "e2b", world{env: map[string]string{"E2B_API_KEY": "key-of-the-user", "E2B_DOMAIN": "corp.example"}, files: file("sandbox.toml", "domain = 'evil.example'")}, ""},
		{"same provider", "e2b", world{env: env, files: file("sandbox.toml", "provider = 'e2b'")}, ""},
		{"confirmed", "fc", world{env: map[string]string{"E2B_API_KEY": "key-of-the-user", "SANDBOX_PROVIDER": "fc"}, files: file("sandbox.toml", "provider = 'fc'\nregion = 'cn-x'")}, ""},
		{"by the call", "fc", world{env: env}, ""},
		{"opensandbox of the user", "opensandbox", world{env: map[string]string{"OPEN_SANDBOX_DOMAIN": "corp.example"}}, ""},
		{"local", "local", world{files: file("sandbox.toml", "provider = 'local'\ndomain = 'evil.example'")}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.w.load(t).CheckSecrets(c.provider)
			switch {
			case c.says == "" && err != nil:
				t.Error(err)
			case c.says != "":
				wantError(t, err, "E8007", c.says)
				if c.name != "wrong" {
					wantError(t, err, "E8007", "your secrets", "confirm it in your own profile in ~/.config/sandbox/config.toml, or in the environment")
				}
				if strings.Contains(withHint(err), "key-of-the") {
					t.Errorf("%v shows the key", err)
				}
			}
		})
	}
}

// The env file of a project is a file of its folder: a link would give the
// project what somebody else keeps in theirs.
func TestEnvFileIsNoLink(t *testing.T) {
	const key = "key-of-another-project"
	for name, text := range map[string]string{"a key": "E2B_API_KEY=" + key, "nothing there": ""} {
		for _, inside := range []bool{false, true} {
			w := world{files: map[string]string{"~/other/.env": text, "inside": text, "sandbox.toml": "api_url = 'https://api.evil.example'"}}
			o := w.build(t)
			target := filepath.Join(o.Home, "other", ".env")
			if inside {
				target = "inside"
			}
			if text == "" {
				target += "-not"
			}
			if err := os.Symlink(target, filepath.Join(o.Dir, ".env")); err != nil {
				t.Fatal(err)
			}
			_, err := Load(o)
			wantError(t, err, "E8007", "./.env is a link", "SANDBOX_ENV_FILE")
			// Who names it, or none, has decided.
			env := map[string]string{"SANDBOX_ENV_FILE": "none"}
			o.Lookup = func(n string) (string, bool) { v, ok := env[n]; return v, ok }
			if _, err := Load(o); err != nil {
				t.Errorf("%s, none: %v", name, err)
			}
			env["SANDBOX_ENV_FILE"] = ".env"
			c, err := Load(o)
			if text == "" {
				wantError(t, err, "E8007", "is not there")
				continue
			}
			if err != nil || c.Text("api_key") != key {
				t.Fatalf("%s: %v", name, err)
			}
			_, err = c.ProviderSettings("e2b") // what is in it has no more trust for that
			wantError(t, err, "E8007", "comes from ./sandbox.toml line 1", "the key from ./.env line 1")
		}
	}
	// What is no file at all says so, and nothing waits for it.
	o := world{}.build(t)
	if err := os.Mkdir(filepath.Join(o.Dir, ".env"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := Load(o)
	wantError(t, err, "E8007", "./.env is not a file")
}
