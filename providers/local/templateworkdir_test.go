//go:build linux

package local

import (
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// A working directory over the tree of this machine is made, or is there, or the
// error says why neither is so.
func TestTemplateWorkdir(t *testing.T) {
	p := templateProvider(t)
	const made, there = "made", "there"
	for dir, want := range map[string]string{
		"/opt": made, "/opt/x": made, "/opt/template": made, "/opt/template/x": made, "/srv/app": made, "/nowhere/deep/er": made,
		"/etc/x": made, "/home/user/x": made, "/home/other": made, "/tmp/x": made,
		"/": there, "/etc": there, "/usr/local": there, "/proc": there, "/tmp": there, "/var": there, "/home/user": there,
		"/usr/local/absent": "has /usr of its own", "/bin/absent": "has /bin of its own", "/proc/x": "has /proc of its own",
		"/dev/x": "has /dev of its own", "/etc/hosts/x": "has /etc/hosts of its own", "/run/x": "what is in /run is not kept", "/root/x": "/root",
	} {
		m := &model.Template{Name: "at", Workdir: dir, Build: runSteps("pwd")}
		printed := dir + "\n"
		if want == made { // and can be written
			m.Build = runSteps("pwd > made")
			printed += printed
		}
		_, err := p.BuildTemplate(t.Context(), providers.TemplateBuild{Model: m})
		if want != made && want != there {
			if errdefs.CodeOf(err) != "E2011" || !strings.Contains(err.Error(), "workdir "+dir+" cannot be made: ") || !strings.Contains(err.Error(), want) || !strings.Contains(errorHint(err), "/srv/app") {
				t.Errorf("%s: %v, want %s", dir, err, want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", dir, err)
			continue
		}
		sb := create(t, p, providers.CreateRequest{Template: "at"})
		out, _ := sh(t, sb, "pwd; cat made 2>/dev/null")
		if out != printed {
			t.Errorf("%s: %q, want %q", dir, out, printed)
		}
		if err := p.Kill(t.Context(), sb.ID); err != nil {
			t.Error(err)
		}
	}
}
