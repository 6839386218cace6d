package config

import (
	"strings"
	"testing"
)

func TestProvider(t *testing.T) {
	const key = "E2B_API_KEY"
	for _, c := range []struct {
		name   string
		w      world
		want   string
		reason string // part of it
	}{
		{"nothing", world{}, "local", "no provider and no API key"},
		{"option", world{opts: map[string]Override{"provider": {"docker", "option Provider"}}, env: map[string]string{"SANDBOX_PROVIDER": "e2b"}}, "docker", "provider from option Provider"},
		{"variable", world{env: map[string]string{"SANDBOX_PROVIDER": " local ", key: "x"}}, "local", "environment SANDBOX_PROVIDER"},
		{"other name", world{env: map[string]string{"SANDBOX_PROVIDER": "express"}}, "fc", "environment SANDBOX_PROVIDER"},
		{"plugin", world{env: map[string]string{"SANDBOX_PROVIDER": "acme"}}, "acme", ""},
		{"profile", world{env: map[string]string{"SANDBOX_PROFILE": "work"}, files: map[string]string{"~/.config/sandbox/config.toml": "provider = 'e2b'\n[profiles.work]\nprovider = 'fc'"}},
			"fc", `provider from ~/.config/sandbox/config.toml line 3, profile "work"`},
		{"default profile", world{files: map[string]string{"~/.config/sandbox/config.toml": "default_profile = 'work'\nprovider = 'e2b'\n[profiles.work]\nprovider = 'fc'"}},
			"fc", `line 4, profile "work"`},
		{"file", world{files: map[string]string{"~/.config/sandbox/config.toml": "provider = 'e2b'"}}, "e2b", "config.toml line 1"},
		{"project", world{files: map[string]string{"sandbox.toml": "provider = 'e2b'"}}, "e2b", "./sandbox.toml line 1"},
		{"key", world{env: map[string]string{key: "e2b_1"}}, "e2b", "API key from environment E2B_API_KEY"},
		{"key of another form", world{env: map[string]string{"SANDBOX_API_KEY": "x"}}, "e2b", "API key from environment SANDBOX_API_KEY"},
		{"key of a file", world{files: map[string]string{"~/.config/sandbox/credentials.toml": "[default]\napi_key = 'x'"}}, "e2b", "API key from ~/.config/sandbox/credentials.toml line 2"},
		{"key of a command", world{files: map[string]string{"~/.config/sandbox/credentials.toml": "[default]\napi_key_command = ['never-run']"}}, "e2b", "credentials.toml line 2"},
		{"key of the project", world{files: map[string]string{".env": "E2B_API_KEY=x"}}, "e2b", "API key from ./.env line 1, E2B_API_KEY"},
		{"region", world{env: map[string]string{key: "e2b_1", "SANDBOX_REGION": "cn-hangzhou"}}, "fc", "region from environment SANDBOX_REGION"},
		{"domain", world{env: map[string]string{key: "x", "E2B_DOMAIN": "cn-beijing.sandbox.aliyuncs.com"}}, "fc", "domain from environment E2B_DOMAIN"},
		{"api_url", world{env: map[string]string{key: "x", "E2B_API_URL": "https://api.cn-beijing.e2b.fc.aliyuncs.com"}}, "fc", "api_url from"},
		{"sandbox_url first", world{env: map[string]string{key: "x", "E2B_API_URL": "https://api.cn-beijing.sandbox.aliyuncs.com", "E2B_SANDBOX_URL": "https://sandbox.e2b.app"}}, "e2b", "sandbox_url from"},
		{"e2b's domain beats the region", world{env: map[string]string{key: "x", "E2B_DOMAIN": "e2b.dev", "SANDBOX_REGION": "x"}}, "e2b", "domain from"},
		{"another address", world{env: map[string]string{key: "x", "E2B_API_URL": "unix:/run/s", "SANDBOX_REGION": "x"}}, "e2b", "api_url from"},
		{"only looks alike", world{env: map[string]string{key: "x", "E2B_DOMAIN": "aliyuncs.com.example.org"}}, "e2b", "domain from"},
		{"debug target", world{env: map[string]string{key: "x", "E2B_DEBUG": "1", "SANDBOX_REGION": "x"}}, "e2b", "E2B_DEBUG"},
		{"opensandbox domain", world{env: map[string]string{"OPEN_SANDBOX_DOMAIN": "localhost:8080"}}, "opensandbox", "OPEN_SANDBOX_DOMAIN"},
		{"opensandbox key", world{env: map[string]string{"OPEN_SANDBOX_API_KEY": "x"}}, "opensandbox", "OPEN_SANDBOX_API_KEY"},
		{"opensandbox file", world{files: map[string]string{"~/.config/sandbox/config.toml": "[opensandbox]\nurl='http://localhost:8080'"}}, "opensandbox", "config.toml line 2"},
		{"our key beats opensandbox", world{env: map[string]string{"OPEN_SANDBOX_API_KEY": "x", key: "x"}}, "e2b", ""},
		{"blank key", world{env: map[string]string{key: "  "}}, "local", ""},
		{"keys of the cloud", world{env: map[string]string{"ALIBABA_CLOUD_ACCESS_KEY_ID": "x", "ALIBABA_CLOUD_ACCESS_KEY_SECRET": "y", "KUBECONFIG": "/x", "DOCKER_HOST": "unix:///x", "SANDBOX_REGION": "x"}}, "local", ""},
		{"address alone", world{env: map[string]string{"E2B_API_URL": "http://127.0.0.1:3000"}}, "e2b", "api_url from environment E2B_API_URL, without an API key"},
		{"address of fc alone", world{env: map[string]string{"E2B_DOMAIN": "cn-beijing.sandbox.aliyuncs.com"}}, "fc", "without an API key"},
		{"debug alone", world{env: map[string]string{"E2B_DEBUG": "true"}}, "e2b", "E2B_DEBUG"},
		{"region of the cloud's tools", world{env: map[string]string{"E2B_API_KEY": "x", "ALIBABA_CLOUD_REGION_ID": "cn-shanghai"}}, "e2b", "API key from environment E2B_API_KEY"},
		{"key for all and region of the cloud's tools", world{env: map[string]string{"SANDBOX_API_KEY": "x", "ALIBABA_CLOUD_REGION_ID": "cn-shanghai"}}, "fc", "region from"},
	} {
		t.Run(c.name, func(t *testing.T) {
			name, reason := c.w.load(t).Provider()
			if name != c.want || !strings.Contains(reason, c.reason) {
				t.Errorf("%s because %q; want %s because of %q", name, reason, c.want, c.reason)
			}
		})
	}
}

func TestDerive(t *testing.T) {
	type want struct{ api, domain, direct, region, edition string }
	for _, c := range []struct {
		name, provider string
		env            map[string]string
		want           want
	}{
		{"e2b", "e2b", nil, want{api: "https://api.e2b.app", domain: "e2b.app"}},
		{"e2b has no region", "e2b", map[string]string{"SANDBOX_REGION": "x"}, want{api: "https://api.e2b.app", domain: "e2b.app"}},
		{"fc", "fc", nil, want{"https://api.cn-hangzhou.sandbox.aliyuncs.com", "cn-hangzhou.sandbox.aliyuncs.com", "", "cn-hangzhou", "flash"}},
		{"express", "express", nil, want{"https://api.cn-hangzhou.sandbox.aliyuncs.com", "cn-hangzhou.sandbox.aliyuncs.com", "", "cn-hangzhou", "flash"}},
		{"region", "fc", map[string]string{"SANDBOX_REGION": "us-east-1"}, want{"https://api.us-east-1.sandbox.aliyuncs.com", "us-east-1.sandbox.aliyuncs.com", "", "us-east-1", "flash"}},
		{"legacy", "fc", map[string]string{"SANDBOX_REGION": "us-east-1", "SANDBOX_FC_EDITION": "Legacy"}, want{"https://api.us-east-1.e2b.fc.aliyuncs.com", "us-east-1.e2b.fc.aliyuncs.com", "", "us-east-1", "legacy"}},
		{"legacy by address", "fc", map[string]string{"E2B_DOMAIN": "cn-beijing.e2b.fc.aliyuncs.com"}, want{"https://api.cn-beijing.e2b.fc.aliyuncs.com", "cn-beijing.e2b.fc.aliyuncs.com", "", "cn-beijing", "legacy"}},
		{"url only", "fc", map[string]string{"E2B_API_URL": "https://api.cn-beijing.sandbox.aliyuncs.com/"}, want{"https://api.cn-beijing.sandbox.aliyuncs.com", "cn-beijing.sandbox.aliyuncs.com", "", "cn-beijing", "flash"}},
		{"url with port", "e2b", map[string]string{"E2B_API_URL": "https://api.corp.example:8443"}, want{api: "https://api.corp.example:8443", domain: "corp.example:8443"}},
		{"domain only", "e2b", map[string]string{"E2B_DOMAIN": "corp.example:8443"}, want{api: "https://api.corp.example:8443", domain: "corp.example:8443"}},
		{"both", "e2b", map[string]string{"E2B_API_URL": "https://control.example/v1", "E2B_DOMAIN": "data.example"}, want{api: "https://control.example/v1", domain: "data.example"}},
		{"one address", "e2b", map[string]string{"E2B_API_URL": "http://127.0.0.1:3000", "E2B_SANDBOX_URL": "http://127.0.0.1:3000"}, want{api: "http://127.0.0.1:3000", direct: "http://127.0.0.1:3000"}},
		{"loopback", "e2b", map[string]string{"E2B_API_URL": "http://localhost:3000"}, want{api: "http://localhost:3000", direct: "http://localhost:3000"}},
		{"unix socket", "e2b", map[string]string{"E2B_API_URL": "unix:///run/s.sock"}, want{api: "unix:/run/s.sock", direct: "unix:/run/s.sock"}},
		{"sandbox_url only", "e2b", map[string]string{"E2B_SANDBOX_URL": "https://one.example"}, want{api: "https://api.e2b.app", domain: "e2b.app", direct: "https://one.example"}},
		{"insecure", "e2b", map[string]string{"E2B_API_URL": "http://gateway.example", "E2B_DOMAIN": "gateway.example", "SANDBOX_INSECURE": "1"}, want{api: "http://gateway.example", domain: "gateway.example"}},
		{"debug", "e2b", map[string]string{"E2B_DEBUG": "true"}, want{api: "http://localhost:3000"}},
		{"offline on this machine", "e2b", map[string]string{"SANDBOX_OFFLINE": "1", "E2B_API_URL": "unix:/s"}, want{api: "unix:/s", direct: "unix:/s"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := world{env: c.env}.load(t).ProviderSettings(c.provider)
			got := want{s["api_url"], s["domain"], s["sandbox_url"], s["region"], s["edition"]}
			if err != nil || got != c.want {
				t.Errorf("got %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
	for _, c := range []struct {
		name, provider string
		env            map[string]string
		says           []string
	}{
		{"url of no form", "e2b", map[string]string{"E2B_API_URL": "https://control.example"}, []string{"conflicting settings", "E2B_API_URL", "domain", "sandbox_url"}},
		{"region against url", "fc", map[string]string{"SANDBOX_REGION": "cn-beijing", "SANDBOX_API_URL": "https://api.cn-shanghai.sandbox.aliyuncs.com"},
			[]string{"conflicting settings: SANDBOX_REGION=cn-beijing but api_url is in cn-shanghai", "SANDBOX_API_URL"}},
		{"url against domain", "fc", map[string]string{"SANDBOX_DOMAIN": "cn-beijing.sandbox.aliyuncs.com", "SANDBOX_API_URL": "https://api.cn-shanghai.sandbox.aliyuncs.com"},
			[]string{"cn-shanghai", "cn-beijing"}},
		{"remote http", "e2b", map[string]string{"E2B_API_URL": "http://control.example", "E2B_DOMAIN": "x.example"}, []string{"not https", "insecure = true", "config.toml"}},
		{"remote http for sandboxes", "e2b", map[string]string{"E2B_SANDBOX_URL": "http://10.0.0.1"}, []string{"sandbox_url http://10.0.0.1", "not https"}},
		{"offline", "e2b", map[string]string{"SANDBOX_OFFLINE": "on"}, []string{"offline is on (environment SANDBOX_OFFLINE)", "api.e2b.app"}},
		{"wrong region", "fc", map[string]string{"SANDBOX_REGION": "a.b"}, []string{"SANDBOX_REGION"}},
		{"wrong edition", "fc", map[string]string{"SANDBOX_FC_EDITION": "3"}, []string{"SANDBOX_FC_EDITION", "flash, legacy"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := world{env: c.env}.load(t).ProviderSettings(c.provider)
			wantError(t, err, "E8007", c.says...)
		})
	}
}

func TestProviderSettings(t *testing.T) {
	w := world{env: map[string]string{"E2B_API_KEY": "e2b_0123456789", "SANDBOX_CA_FILE": "/ca.pem", "E2B_VALIDATE_API_KEY": "false", "SANDBOX_HTTP_TIMEOUT": "5"}}
	s, err := w.load(t).ProviderSettings("e2b")
	if err != nil {
		t.Fatal(err)
	}
	for k, want := range map[string]string{
		"api_key": "e2b_0123456789", "api_key_source": "environment E2B_API_KEY", "http2": "true", "max_retries": "3", "http_timeout": "5s",
		"ca_file": "/ca.pem", "validate_api_key": "false",
	} {
		if s[k] != want {
			t.Errorf("%s is %q, want %q", k, s[k], want)
		}
	}
	w = world{env: map[string]string{"SANDBOX_PROFILE": "work", "ALICLOUD_ACCESS_KEY": "LTAIx", "ALICLOUD_SECRET_KEY": "y"}, files: map[string]string{
		"~/.config/sandbox/config.toml": "[profiles.work]\n[plugin.acme]\nserver = 'x'\nlevel = 3", "~/.ebx/.env": "E2B_DOMAIN=e2b.app"}}
	c := w.load(t)
	s, err = c.ProviderSettings("e2b")
	if err != nil || s["api_key"] != "" || s["api_key_source"] != `option APIKey, SANDBOX_API_KEY, E2B_API_KEY, profile "work" and [default] of ~/.config/sandbox/credentials.toml, ~/.ebx` {
		t.Errorf("got %q, %v", s["api_key_source"], err)
	}
	if s, err := c.ProviderSettings("fc"); err != nil || s["validate_api_key"] != "" {
		t.Errorf("fc: %v, %v", s, err)
	}
	if s, err := c.ProviderSettings("acme"); err != nil || s["server"] != "x" || s["level"] != "3" || len(s) != 2 {
		t.Errorf("plugin: %v, %v", s, err)
	}
	for _, half := range []string{"ALIBABA_CLOUD_ACCESS_KEY_ID", "ALICLOUD_SECRET_KEY"} {
		c := world{env: map[string]string{half: "LTAI0123456789abcdef"}}.load(t)
		_, err := c.ProviderSettings("fc")
		wantError(t, err, "E1003", "incomplete AccessKey", half, "is empty")
		if _, err := c.ProviderSettings("e2b"); err != nil {
			t.Errorf("e2b: %v", err)
		}
		c = world{env: map[string]string{half: "LTAI0123456789abcdef", "SANDBOX_API_KEY": "key-of-fc"}}.load(t)
		if s, err := c.ProviderSettings("fc"); err != nil || s["api_key"] != "key-of-fc" {
			t.Errorf("a key beats the AccessKey: %v", err)
		}
	}
}
