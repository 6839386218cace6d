package fc

import (
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/providers/e2b"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func TestProfile(t *testing.T) {
	for _, c := range []struct {
		name        string
		set         map[string]string
		api, domain string
		code        errdefs.Code
	}{
		{"nothing", nil, "https://api.cn-hangzhou.sandbox.aliyuncs.com", "cn-hangzhou.sandbox.aliyuncs.com", ""},
		{"region", map[string]string{"region": "cn-shanghai"}, "https://api.cn-shanghai.sandbox.aliyuncs.com", "cn-shanghai.sandbox.aliyuncs.com", ""},
		{"older", map[string]string{"region": "us-east-1", "edition": "legacy"}, "https://api.us-east-1.e2b.fc.aliyuncs.com", "us-east-1.e2b.fc.aliyuncs.com", ""},
		{"region of the address", map[string]string{"api_url": "https://api.cn-beijing.sandbox.aliyuncs.com"}, "https://api.cn-beijing.sandbox.aliyuncs.com", "cn-beijing.sandbox.aliyuncs.com", ""},
		{"two regions", map[string]string{"region": "cn-shanghai", "domain": "cn-beijing.e2b.fc.aliyuncs.com"}, "", "", "E8007"},
		{"edition", map[string]string{"edition": "x"}, "", "", "E8007"},
		{"region that is none", map[string]string{"region": "evil.example/"}, "", "", "E8007"},
	} {
		p, err := profile(c.set)
		if errdefs.CodeOf(err) != c.code || p.APIURL != c.api || p.Domain != c.domain {
			t.Errorf("%s: %s, %s, %v", c.name, p.APIURL, p.Domain, err)
		}
	}
}

func TestNoKey(t *testing.T) {
	for _, name := range []string{Name, OtherName} {
		_, err := providers.Open(name, providers.Config{})
		e, ok := err.(*errdefs.Error)
		if !ok || e.Code != "E1001" || !strings.Contains(e.Suggestion, "not part of this program") {
			t.Errorf("%v", err)
		}
	}
	p, err := providers.Open(OtherName, providers.Config{Settings: map[string]string{e2b.SettingAPIKey: "any-form-of-key"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if p.Name() != Name {
		t.Errorf("the name is %q", p.Name())
	}
}
