//go:build linux

package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/providers/local"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// The steps of a build over an image write everywhere in its tree. What they
// have written, hidden and replaced is so in sandboxes made from it, whose tree
// cannot be written.
func TestTemplateOverImage(t *testing.T) {
	tools := layer(t, programs(t, "mkdir", "mv", "chmod", "tar", "rm", "chown", "cp")...)
	img := build(t, v1.Config{Env: []string{"FROM_IMAGE=1", "PATH=/bin"}, WorkingDir: "/opaque"}, small(t), tools)
	s := newServer(t)
	ref := s.push(t, "base:v1", img)
	p := openLocal(t, stateDir(t))
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "conf"), []byte("conf"), 0o600); err != nil {
		t.Fatal(err)
	}
	users := os.Geteuid() == 0 || !strings.Contains(userNS(t, p), "single")
	own := "true"
	if users {
		own = "chown 33:33 /opt/owned"
	}
	m := &model.Template{
		Name: "over", Base: model.Base{Image: ref}, Env: map[string]string{"MINE": "2"},
		Build: []model.Step{
			{Run: "set -e; pwd; mkdir -p /opt/tool; echo tool > /opt/tool/file; rm -r /gone; echo new > /etc/lower; touch /opt/owned; " + own + "; echo home > /home/user/h"},
			{Run: "set -e; cat /opt/tool/file /etc/lower; ls -d /gone 2>/dev/null && exit 1; rm /opaque/old; mkdir /gone; echo back > /gone/g; echo 'app:x:77:77:a:/opt:/bin/sh' >> /etc/passwd"},
			{Copy: &model.Copy{Src: "conf", Dest: "/etc/tool/conf"}},
		},
	}
	var out strings.Builder
	tmpl, err := p.BuildTemplate(t.Context(), providers.TemplateBuild{Model: m, Files: os.DirFS(dir), Progress: func(e providers.BuildEvent) {
		out.WriteString(e.Text + "\n")
	}})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if !strings.Contains(out.String(), "/opaque\n") {
		t.Errorf("the first step did not run in the working directory of the image: %s", out.String())
	}
	check := func(sb *providers.Sandbox) {
		t.Helper()
		got := run(t, sb, "/bin/sh", "-c", `cat /opt/tool/file /etc/lower /gone/g /home/user/h /etc/tool/conf; echo; ls /gone /opaque; echo $FROM_IMAGE $MINE; pwd; id -un
touch /opt/x 2>/dev/null && echo written; id -u app; cat /etc/passwd | while IFS= read -r l; do case $l in app*) echo "$l";; esac; done`)
		want := "tool\nnew\nback\nhome\nconf\n/gone:\ng\n\n/opaque:\n1 2\n/opaque\nuser\n77\napp:x:77:77:a:/opt:/bin/sh\n"
		if got != want {
			t.Errorf("in the sandbox: %q, want %q", got, want)
		}
	}
	sb, err := p.Create(t.Context(), providers.CreateRequest{Template: "over"})
	if err != nil {
		t.Fatal(err)
	}
	check(sb)
	if users {
		if got := run(t, sb, "/bin/ls", "-ln", "/opt/owned"); !strings.Contains(got, " 33 33 ") {
			t.Errorf("owner: %q", got)
		}
	}
	// Its files and those of the build are in what is kept of it.
	run(t, sb, "/bin/sh", "-c", "echo later > /home/user/later")
	sn, err := p.Snapshot(t.Context(), sb.ID, providers.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Hibernate(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	woken, err := p.Connect(t.Context(), sb.ID, providers.ConnectRequest{})
	if err != nil {
		t.Fatal(err)
	}
	check(woken)
	child, err := p.Create(t.Context(), providers.CreateRequest{Snapshot: sn.ID})
	if err != nil {
		t.Fatal(err)
	}
	check(child)
	if got := run(t, child, "/bin/cat", "/home/user/later"); got != "later\n" {
		t.Errorf("in the child: %q", got)
	}
	cached := 0
	again, err := p.BuildTemplate(t.Context(), providers.TemplateBuild{Model: m, Files: os.DirFS(dir), Progress: func(e providers.BuildEvent) {
		if e.Kind == providers.BuildCached {
			cached++
		}
	}})
	if err != nil || cached != 3 || again.Digest != tmpl.Digest {
		t.Errorf("second build: %d steps cached, %v", cached, err)
	}
	for _, id := range []string{sb.ID, child.ID} {
		if err := p.Kill(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if err := p.DeleteSnapshot(t.Context(), sn.ID); err != nil {
		t.Error(err)
	}
	if err := p.RemoveTemplate(t.Context(), "over"); err != nil {
		t.Error(err)
	}
}

// userNS is what the report says of the users of a sandbox.
func userNS(t *testing.T, p *local.Provider) string {
	t.Helper()
	sb, err := p.Create(t.Context(), providers.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Report(t.Context(), sb.ID)
	if err == nil {
		err = p.Kill(t.Context(), sb.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r.UserNS
}
