package sandboxfn

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
)

// atProject makes the test run in the folder of a project with these files, and
// with a home that has nothing else.
func atProject(t *testing.T, files map[string]string) (home string) {
	t.Helper()
	unset(t)
	home, dir := t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	for _, name := range []string{"XDG_CONFIG_HOME", "SANDBOX_CONFIG_DIR", "SANDBOX_PROFILE", "SANDBOX_ENV_FILE", "SANDBOX_LOG_LEVEL", "E2B_DEBUG", "SSL_CERT_FILE", "SANDBOX_CA_FILE"} {
		t.Setenv(name, "")
	}
	for name, text := range files {
		file := filepath.Join(dir, name)
		if rest, ok := strings.CutPrefix(name, "~/"); ok {
			file = filepath.Join(home, rest)
		}
		must(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must(t, os.WriteFile(file, []byte(text), 0o600))
	}
	t.Chdir(dir)
	return home
}

// A client takes what the user's files say, and its options beat them.
func TestClientReadsFiles(t *testing.T) {
	atProject(t, map[string]string{
		"~/.config/sandbox/config.toml": "template = 'top'\nlifetime = 60\n[profiles.work]\nprovider = 'local'\nhttp_timeout = '7s'\n[profiles.other]\ntemplate = 'mine'",
		"sandbox.toml":                  "template = 'project'\ncreate_timeout = '99s'",
	})
	o, _, err := (&ClientOptions{Profile: "work"}).withDefaults()
	must(t, err)
	if o.Profile != "work" || o.Provider != "local" || o.Template != "top" || o.Lifetime != time.Minute || o.RequestTimeout != 7*time.Second || o.CreateTimeout != 99*time.Second {
		t.Errorf("got %+v", o)
	}
	t.Setenv("SANDBOX_PROFILE", "other")
	o, _, err = (&ClientOptions{Lifetime: time.Second}).withDefaults()
	must(t, err)
	if o.Template != "mine" || o.Lifetime != time.Second {
		t.Errorf("got %+v", o)
	}
	_, err = NewClient(&ClientOptions{Profile: "wrok"})
	if !errors.Is(err, ErrAuth) || CodeOf(err) != "E1008" || !strings.Contains(err.Error(), "profiles: other, work (option Profile)") {
		t.Errorf("got %v", err)
	}
}

// What a provider gets of the options and the settings.
func TestProviderGetsSettings(t *testing.T) {
	atProject(t, map[string]string{"~/.config/sandbox/config.toml": "max_retries = 1\nca_file = '/ca.pem'"})
	t.Setenv("SANDBOX_DEBUG", "")
	c, err := NewClient(&ClientOptions{Provider: "local", StateDir: t.TempDir(), APIKey: NewSecret("key-of-the-option"), Region: "cn-shanghai", RequestTimeout: NoTimeout})
	must(t, err)
	defer c.Close()
	s, err := c.providerSettings("fc")
	must(t, err)
	for k, want := range map[string]string{
		"api_key": "key-of-the-option", "api_key_source": "option APIKey", "region": "cn-shanghai", "api_url": "https://api.cn-shanghai.sandbox.aliyuncs.com",
		"max_retries": "1", "ca_file": "/ca.pem", "http_timeout": "-1ns",
	} {
		if s[k] != want {
			t.Errorf("%s is %q, want %q", k, s[k], want)
		}
	}
	if !strings.HasPrefix(s["user_agent"], "sandbox-go/") {
		t.Errorf("user_agent %q", s["user_agent"])
	}
	if s, err := c.providerSettings("local"); err != nil || s != nil {
		t.Errorf("local gets %v, %v", s, err)
	}
	s, err = (&Client{cfg: must1(NewClient(&ClientOptions{Provider: "local", StateDir: t.TempDir(), APIURL: "unix:/run/x"}))(t).cfg}).providerSettings("e2b")
	if err != nil || s["api_url"] != "unix:/run/x" || s["sandbox_url"] != "unix:/run/x" {
		t.Errorf("got %v, %v", s, err)
	}
}

func must1[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// An address that only the project names never sees the user's key: nothing is
// asked of it at all.
func TestProjectGetsNoKeyOfTheUser(t *testing.T) {
	var requests atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		http.NotFound(w, r)
	}))
	defer srv.Close()
	const key = "e2b_0123456789abcdef0123456789abcdef01234567"
	for name, files := range map[string]map[string]string{
		"sandbox.toml": {"sandbox.toml": "api_url = '" + srv.URL + "'\nsandbox_url = '" + srv.URL + "'\n"},
		".env":         {".env": "E2B_API_URL=" + srv.URL + "\nE2B_SANDBOX_URL=" + srv.URL + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			atProject(t, files)
			t.Setenv("E2B_API_KEY", key)
			c, err := NewClient(nil)
			if err == nil {
				defer c.Close()
				_, err = c.Create(t.Context(), nil)
			}
			if !errors.Is(err, ErrSettings) || !strings.Contains(err.Error(), "comes from ./"+name) || strings.Contains(err.Error(), key) {
				t.Errorf("got %v", err)
			}
			if n := requests.Load(); n != 0 {
				t.Errorf("%d requests were made", n)
			}
		})
	}
	// With a key of its own the project may.
	atProject(t, map[string]string{".env": "E2B_API_KEY=" + key + "\nE2B_API_URL=" + srv.URL + "\nE2B_SANDBOX_URL=" + srv.URL + "\n"})
	c, err := NewClient(nil)
	must(t, err)
	defer c.Close()
	if c.Provider() != "e2b" {
		t.Errorf("provider %s", c.Provider())
	}
	if _, err := c.Create(t.Context(), nil); err == nil || requests.Load() == 0 {
		t.Errorf("nothing was asked; %v", err)
	}
}

// Keys pass no logger, whoever made it.
func TestLoggerHidesSecrets(t *testing.T) {
	atProject(t, nil)
	const key = "e2b_0123456789abcdef0123456789abcdef01234567"
	var out bytes.Buffer
	c, err := NewClient(&ClientOptions{
		Provider: "local", StateDir: t.TempDir(), APIKey: NewSecret(key), Logger: slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	must(t, err)
	defer c.Close()
	c.log.Warn("key "+key, "err", errors.New(key), "token", "short")
	if s := out.String(); strings.Contains(s, key) || strings.Contains(s, "short") || !strings.Contains(s, `key ***`) || !strings.Contains(s, "provider chosen") {
		t.Errorf("got %s", s)
	}
	if c.opts.APIKey.Reveal() != "" {
		t.Error("the options keep the key")
	}
}

// Credentials of the host are the host's: none reaches a sandbox.
func TestCredentialsStayOutside(t *testing.T) {
	unset(t)
	secret := "planted-" + randomID()
	for _, name := range []string{
		"SANDBOX_API_KEY", "E2B_API_KEY", "ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET", "ALIBABA_CLOUD_SECURITY_TOKEN",
		"ALICLOUD_ACCESS_KEY", "ALICLOUD_SECRET_KEY", "AccessKey", "AccessSecret", "OPEN_SANDBOX_API_KEY", "SANDBOX_SERVER_TOKEN", "EBX_SERVER_TOKEN",
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GITHUB_TOKEN", "SANDBOX_PLUGIN_ACME_TOKEN",
	} {
		t.Setenv(name, secret)
	}
	onEach(t, func(t *testing.T, sb *Sandbox) {
		commands := []string{"env", "cat /proc/self/environ"}
		if sb.Provider() == "local" {
			commands = append(commands, "cat /proc/[0-9]*/environ 2>/dev/null; true")
		}
		for _, line := range commands {
			out, err := sb.Shell(t.Context(), line).Output()
			if err != nil || len(out) == 0 || bytes.Contains(out, []byte(secret)) {
				t.Errorf("%s: %v; holds the secret: %v", line, err, bytes.Contains(out, []byte(secret)))
			}
		}
	})
}

// A provider is opened with its settings, or not at all.
func TestOtherProviderOfOneCreation(t *testing.T) {
	atProject(t, nil)
	t.Setenv("SANDBOX_REGION", "cn-beijing")
	t.Setenv("SANDBOX_API_URL", "https://api.cn-shanghai.sandbox.aliyuncs.com")
	c, err := NewClient(&ClientOptions{Provider: "local", StateDir: t.TempDir()})
	must(t, err)
	defer c.Close()
	_, err = c.Create(t.Context(), &CreateOptions{Provider: "fc"})
	if !errors.Is(err, ErrSettings) || !strings.Contains(err.Error(), "SANDBOX_REGION=cn-beijing but api_url is in cn-shanghai") {
		t.Errorf("got %v", err)
	}
	t.Setenv("SANDBOX_API_URL", "")
	c, err = NewClient(&ClientOptions{Provider: "fc"})
	if !errors.Is(err, ErrAuth) || !strings.Contains(err.Error(), "looked at option APIKey, SANDBOX_API_KEY, E2B_API_KEY, ~/.config/sandbox/credentials.toml") {
		t.Errorf("got %v, %v", c, err)
	}
	if !strings.Contains(strings.Join(providers.Names(), " "), "e2b") {
		t.Error("e2b is not linked")
	}
}

// A secretSpy is a source that counts how often it is asked.
type secretSpy struct{ asked atomic.Int32 }

func (s *secretSpy) Secret(context.Context, string) (Secret, error) {
	s.asked.Add(1)
	return NewSecret("hunter2-of-the-user"), nil
}

// Where the project names the service, functions get no secrets of the user,
// and neither their source nor the service is asked anything.
func TestProjectGetsNoSecretsOfFunctions(t *testing.T) {
	var requests atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		http.NotFound(w, r)
	}))
	defer srv.Close()
	const key = "e2b_0123456789abcdef0123456789abcdef01234567"
	atProject(t, map[string]string{".env": "E2B_API_KEY=" + key + "\nE2B_API_URL=" + srv.URL + "\nE2B_SANDBOX_URL=" + srv.URL + "\n"})
	spy := &secretSpy{}
	c, err := NewClient(&ClientOptions{Secrets: spy, StateDir: t.TempDir()})
	must(t, err)
	defer c.Close()
	_, err = poolDouble.With(Options{Secrets: map[string]string{"TOKEN": ""}}).Call(WithClient(t.Context(), c), 1)
	if !errors.Is(err, ErrSettings) {
		t.Fatalf("got %v", err)
	}
	e, _ := errors.AsType[*Error](err)
	for _, part := range []string{"secret TOKEN", "api_url " + srv.URL + " comes from ./.env line 2, E2B_API_URL"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not say %q", err, part)
		}
	}
	if !strings.Contains(e.Suggestion, "confirm it in your own profile") || strings.Contains(err.Error(), key) {
		t.Errorf("got %v (hint: %s)", err, e.Suggestion)
	}
	if n, m := spy.asked.Load(), requests.Load(); n != 0 || m != 0 {
		t.Errorf("the source was asked %d times, the service %d times", n, m)
	}
	// A provider of this machine has them all the same.
	if v, err := (guardedSecrets{c, "local"}).Secret(t.Context(), "TOKEN"); err != nil || v.Reveal() != "hunter2-of-the-user" {
		t.Errorf("local: %v", err)
	}
}
