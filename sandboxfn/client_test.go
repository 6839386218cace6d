package sandboxfn

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// unset makes variables that choose a provider count as not set.
func unset(t *testing.T) {
	for _, name := range []string{
		"SANDBOX_PROVIDER", "SANDBOX_API_KEY", "E2B_API_KEY", "OPEN_SANDBOX_API_KEY", "OPEN_SANDBOX_DOMAIN", "SANDBOX_REGION",
		"ALIBABA_CLOUD_REGION_ID", "ALICLOUD_REGION", "SANDBOX_URL", "SANDBOX_API_URL", "SANDBOX_DOMAIN", "E2B_SANDBOX_URL",
		"E2B_API_URL", "E2B_DOMAIN", "SANDBOX_LIFETIME", "SANDBOX_HTTP_TIMEOUT", "SANDBOX_CREATE_TIMEOUT", "SANDBOX_DEBUG", "SANDBOX_TEMPLATE",
	} {
		t.Setenv(name, "")
	}
}

func TestChooseProvider(t *testing.T) {
	for _, c := range []struct {
		name string
		env  map[string]string
		want string
	}{
		{"nothing", nil, "local"},
		{"blank", map[string]string{"SANDBOX_PROVIDER": "  "}, "local"},
		{"variable", map[string]string{"SANDBOX_PROVIDER": " local "}, "local"},
		{"variable beats key", map[string]string{"SANDBOX_PROVIDER": "local", "E2B_API_KEY": "e2b_1"}, "local"},
		{"key", map[string]string{"E2B_API_KEY": "e2b_1"}, "e2b"},
		{"key and region", map[string]string{"E2B_API_KEY": "e2b_1", "SANDBOX_REGION": "cn-hangzhou"}, "fc"},
		{"key and address", map[string]string{"SANDBOX_API_KEY": "x", "E2B_DOMAIN": "cn-beijing.sandbox.aliyuncs.com"}, "fc"},
		{"key and other address", map[string]string{"SANDBOX_API_KEY": "x", "E2B_DOMAIN": "e2b.app", "SANDBOX_REGION": "x"}, "e2b"},
		{"other service", map[string]string{"OPEN_SANDBOX_DOMAIN": "localhost:8080"}, "opensandbox"},
		{"cloud keys alone choose nothing", map[string]string{"ALIBABA_CLOUD_ACCESS_KEY_ID": "x", "KUBECONFIG": "x"}, "local"},
	} {
		t.Run(c.name, func(t *testing.T) {
			unset(t)
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			o, _, err := (*ClientOptions)(nil).withDefaults()
			if err != nil || o.Provider != c.want {
				t.Errorf("got %q, %v; want %q", o.Provider, err, c.want)
			}
		})
	}
}

func TestProviderThatIsNotThere(t *testing.T) {
	unset(t)
	_, err := NewClient(&ClientOptions{Provider: "lokal"})
	if !errors.Is(err, ErrUnknownProvider) || !strings.Contains(err.Error(), `"lokal"`) || !strings.Contains(err.Error(), "local") {
		t.Errorf("got %v", err)
	}
	t.Setenv("OPEN_SANDBOX_API_KEY", "0123456789secret")
	_, err = NewClient(nil)
	if !errors.Is(err, ErrUnknownProvider) || !strings.Contains(err.Error(), "OPEN_SANDBOX_API_KEY") || strings.Contains(err.Error(), "0123456789") {
		t.Errorf("got %v", err)
	}
}

func TestSettings(t *testing.T) {
	unset(t)
	t.Setenv("SANDBOX_LIFETIME", " 90 ")
	t.Setenv("SANDBOX_HTTP_TIMEOUT", "1m30s")
	t.Setenv("SANDBOX_TEMPLATE", "base")
	o, _, err := (&ClientOptions{CreateTimeout: time.Second}).withDefaults()
	if err != nil || o.Lifetime != 90*time.Second || o.RequestTimeout != 90*time.Second || o.Template != "base" || o.CreateTimeout != time.Second {
		t.Errorf("got %+v, %v", o, err)
	}
	for name, v := range map[string]string{
		"SANDBOX_LIFETIME": "soon", "SANDBOX_HTTP_TIMEOUT": "-3s", "SANDBOX_CREATE_TIMEOUT": "0", "SANDBOX_DEBUG": "perhaps",
	} {
		t.Run(name, func(t *testing.T) {
			unset(t)
			t.Setenv(name, v)
			if _, err := NewClient(nil); !errors.Is(err, ErrSettings) || !strings.Contains(err.Error(), name) {
				t.Errorf("got %v", err)
			}
		})
	}
	if _, err := NewClient(&ClientOptions{Lifetime: -1}); !errors.Is(err, ErrSettings) {
		t.Errorf("got %v", err)
	}
}

// The default client can be closed; the next use makes a new one.
func TestDefaultClient(t *testing.T) {
	unset(t)
	t.Setenv("SANDBOX_STATE_DIR", t.TempDir())
	a, err := DefaultClient()
	must(t, err)
	b, err := clientFrom(t.Context())
	if a != b || err != nil {
		t.Errorf("two clients, %v", err)
	}
	must(t, a.Close())
	c, err := DefaultClient()
	if c == a || err != nil {
		t.Errorf("the closed client again, %v", err)
	}
	must(t, c.Close())
	if got, err := clientFrom(WithClient(t.Context(), a)); got != a || err != nil {
		t.Errorf("not the client of the context, %v", err)
	}
}

// Inside a sandbox the local provider says why it cannot make another.
func TestNesting(t *testing.T) {
	unset(t)
	t.Setenv("SANDBOX_ID", "outer")
	t.Setenv("E2B_SANDBOX", "true")
	c, err := NewClient(&ClientOptions{StateDir: t.TempDir()})
	must(t, err)
	defer c.Close()
	if _, err := c.Create(t.Context(), nil); !errors.Is(err, ErrIsolation) || !strings.Contains(err.Error(), "outer") {
		t.Errorf("got %v", err)
	}
}
