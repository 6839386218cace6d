package gateway

import (
	"context"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// What was built on this machine is a template of the gateway, of every key and
// none's own.
func TestBuiltTemplates(t *testing.T) {
	f := startLocal(t, Options{})
	p := f.provider.(providers.TemplateBuilder)
	f.want(f.do("POST", "/sandboxes", `{"templateID":"tools"}`), 404)
	f.want(f.do("GET", "/templates/aliases/tools", nil), 404)
	m := &model.Template{Name: "tools", Env: map[string]string{"FROM_TEMPLATE": "1"}, Build: []model.Step{{Run: "echo built > /home/user/f"}}}
	if _, err := p.BuildTemplate(t.Context(), providers.TemplateBuild{Model: m}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.RemoveTemplate(context.Background(), "tools"); err != nil {
			t.Error(err)
		}
	})
	if r := f.want(f.do("POST", "/sandboxes", `{"templateID":"tolos"}`), 404); !strings.Contains(string(r.body), `this gateway has base, tools; did you mean \"tools\"?`) {
		t.Errorf("nearly its name: %s", r.body)
	}
	var sb api.Sandbox
	f.want(f.do("POST", "/sandboxes", `{"templateID":"tools:default","envVars":{"OWN":"2"}}`), 201).decode(t, &sb)
	if sb.TemplateID != "tools" || f.detail(sb.SandboxID).TemplateID != "tools" {
		t.Errorf("the template is %q", sb.TemplateID)
	}
	if out := f.run(sb, "cat f; echo $FROM_TEMPLATE $OWN"); out != "built\n1 2\n" {
		t.Errorf("in the sandbox: %q", out)
	}
	f.want(f.do("GET", "/templates/aliases/tools", nil), 200)
	f.want(f.do("GET", "/templates/tools", nil), 501)
	f.want(f.do("DELETE", "/templates/tools", nil), 403)
	f.want(f.do("POST", "/v3/templates", `{"name":"tools"}`), 501)
	if r := f.want(f.do("GET", "/v2/templates", nil), 200); string(r.body) != "[]\n" && string(r.body) != "[]" {
		t.Errorf("own templates: %s", r.body)
	}
	f.want(f.do("DELETE", "/sandboxes/"+sb.SandboxID, nil), 204)
}
