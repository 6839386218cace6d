package config

import (
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
		{"its own key", "e2b", world{files: map[string]string{".env": "E2B_API_KEY=key-of-the-project", "sandbox.toml": "domain = 'corp.example'"}}, true},
		{"its own key, the user's address", "e2b", world{files: map[string]string{".env": "E2B_API_KEY=key-of-the-project"}, env: map[string]string{"E2B_DOMAIN": "corp.example"}}, true},
		{"the user confirms", "e2b", world{files: map[string]string{"sandbox.toml": "domain = 'corp.example'", "~/.config/sandbox/config.toml": "domain = 'corp.example'"}, env: map[string]string{"E2B_API_KEY": "key-of-the-user"}}, true},
		{"half confirmed", "e2b", world{files: map[string]string{"sandbox.toml": "domain = 'evil.example'"}, env: map[string]string{"E2B_API_KEY": "key-of-the-user", "E2B_API_URL": "https://api.corp.example"}}, false},
		{"no key", "e2b", world{files: map[string]string{"sandbox.toml": "domain = 'corp.example'"}}, true},
		{"AccessKey", "fc", world{files: map[string]string{"sandbox.toml": "domain = 'evil.example'"}, env: map[string]string{"ALIBABA_CLOUD_ACCESS_KEY_ID": "LTAIx", "ALIBABA_CLOUD_ACCESS_KEY_SECRET": "secret-of-the-user"}}, false},
		{"AccessKey is not for e2b", "e2b", world{files: map[string]string{"sandbox.toml": "domain = 'corp.example'", ".env": "E2B_API_KEY=key-of-the-project"}, env: map[string]string{"ALIBABA_CLOUD_ACCESS_KEY_ID": "LTAIx", "ALIBABA_CLOUD_ACCESS_KEY_SECRET": "secret-of-the-user"}}, true},
		{"region", "fc", world{files: map[string]string{"sandbox.toml": "region = 'cn-shanghai'"}, env: map[string]string{"SANDBOX_API_KEY": "key-of-the-user"}}, true},
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
				wantError(t, err, "E8007", "the key from environment")
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
