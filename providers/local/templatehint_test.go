//go:build linux

package local

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// A step that installs packages, and fails where it can reach nothing, is told
// what to write.
func TestBuildHintsNetwork(t *testing.T) {
	for text, want := range map[string]bool{"": true, "none": true, "loopback": true, "host": false, "192.0.2.1:443": false} {
		b := &templateBuild{network: networkPolicy(text)}
		for _, fetch := range []bool{true, false} {
			hint := b.hintNetwork(&buildStep{fetch: fetch})
			if got := strings.Contains(hint, "build_network") && strings.Contains(hint, "--network"); got != (want && fetch) {
				t.Errorf("network %q, fetch %v: hint %q", text, fetch, hint)
			}
		}
	}
	if _, err := exec.LookPath("pip3"); err != nil {
		t.Skip("no pip")
	}
	p := templateProvider(t)
	m := &model.Template{Name: "closed", Env: map[string]string{"PIP_RETRIES": "0"}, Build: []model.Step{{Pip: []string{"no-such-package-of-anyone==1"}}}}
	_, err := p.BuildTemplate(t.Context(), providers.TemplateBuild{Model: m})
	if errdefs.CodeOf(err) != "E7010" || !strings.Contains(errorHint(err), "build_network") {
		t.Errorf("%v, hint %q", err, errorHint(err))
	}
}
