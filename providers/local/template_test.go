//go:build linux

package local

import (
	"archive/zip"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// templateProvider is a provider on which nothing is left, no layer either, when
// the test has removed its sandboxes and the templates are removed.
func templateProvider(t *testing.T) *Provider {
	t.Helper()
	p := snapshotProvider(t)
	t.Cleanup(func() {
		all, err := p.ListTemplates(context.Background())
		if err != nil {
			t.Error(err)
		}
		for _, s := range all {
			if err := p.RemoveTemplate(context.Background(), s.Name); err != nil {
				t.Error("remove:", err)
			}
		}
		nothingLeft(t, p)
	})
	return p
}

// nothingLeft fails when a file of a template, a build or a layer is there.
func nothingLeft(t *testing.T, p *Provider) {
	t.Helper()
	names, err := p.tree.templates.allNames()
	if err != nil || len(names) > 0 {
		t.Errorf("left in templates: %q, %v", names, err)
	}
	if layers := layerNames(t, p); len(layers) > 0 {
		t.Errorf("left in layers: %q", layers)
	}
	noSandboxes(t, p)
}

func noSandboxes(t *testing.T, p *Provider) {
	t.Helper()
	if page, err := p.List(context.Background(), providers.ListRequest{}); err != nil || len(page.Sandboxes) > 0 {
		t.Errorf("sandboxes left: %v, %v", page, err)
	}
}

// watcher collects the news of a build.
type watcher struct {
	mu     sync.Mutex
	events []providers.BuildEvent
}

func (w *watcher) add(e providers.BuildEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

// kinds are the events of steps, with the numbers of the steps.
func (w *watcher) kinds() string {
	var out []string
	for _, e := range w.events {
		if e.Kind != providers.BuildOutput && e.Step > 0 {
			out = append(out, string(e.Kind)+" "+string(rune('0'+e.Step)))
		}
	}
	return strings.Join(out, ", ")
}

func (w *watcher) output() string {
	var out []string
	for _, e := range w.events {
		if e.Kind == providers.BuildOutput {
			out = append(out, e.Text)
		}
	}
	return strings.Join(out, "\n")
}

func buildTemplate(t *testing.T, p *Provider, m *model.Template, dir string) (*providers.Template, *watcher) {
	t.Helper()
	w := &watcher{}
	var files fs.FS
	if dir != "" {
		files = os.DirFS(dir)
	}
	s, err := p.BuildTemplate(t.Context(), providers.TemplateBuild{Model: m, Files: files, Progress: w.add})
	if err != nil {
		t.Fatalf("build %s: %v\n%s", m.Name, err, w.output())
	}
	return s, w
}

func runSteps(lines ...string) []model.Step {
	var out []model.Step
	for _, l := range lines {
		out = append(out, model.Step{Run: l})
	}
	return out
}

func TestBuildTemplate(t *testing.T) {
	p := templateProvider(t)
	dir := t.TempDir()
	put(t, dir, map[string]string{"src/a": "a", "src/sub/b": "b", "src/link": "-> a", "one": "1"})
	if err := os.Chmod(filepath.Join(dir, "one"), 0o755); err != nil {
		t.Fatal(err)
	}
	m := &model.Template{
		Name: "tools", Env: map[string]string{"GREETING": "hello there"}, Workdir: "/app",
		Build: []model.Step{
			{Run: "echo building; echo $GREETING > greeting; pwd"},
			{Copy: &model.Copy{Src: "src", Dest: "/data/src"}},
			{Copy: &model.Copy{Src: "one", Dest: "bin/"}},
			{Run: "cat /data/src/sub/b > b; ls -l bin; mkdir -p " + templatePrefix + "/bin; printf '#!/bin/sh\\necho mine\\n' > " + templatePrefix + "/bin/mine; chmod 755 " + templatePrefix + "/bin/mine"},
		},
	}
	s, w := buildTemplate(t, p, m, dir)
	if want := "started 1, done 1, started 2, done 2, started 3, done 3, started 4, done 4"; w.kinds() != want {
		t.Errorf("events: %s, want %s", w.kinds(), want)
	}
	if out := w.output(); !strings.Contains(out, "building\n/app") {
		t.Errorf("output: %q", out)
	}
	noSandboxes(t, p)

	sb := create(t, p, providers.CreateRequest{Template: "tools"})
	if sb.Template != "tools" {
		t.Errorf("the sandbox is made from %q", sb.Template)
	}
	got := mustSh(t, sb, `pwd; cat greeting b /data/src/a /data/src/link; echo; stat -c %a bin/one; mine; echo $GREETING; touch own; readlink /data/src/link`)
	if want := "/app\nhello there\nbaa\n755\nmine\nhello there\na\n"; got != want {
		t.Errorf("in the sandbox: %q, want %q", got, want)
	}
	// What a sandbox says itself comes first.
	other := create(t, p, providers.CreateRequest{Template: "tools", Env: map[string]string{"GREETING": "no"}, WorkDir: "/tmp"})
	if got := mustSh(t, other, "pwd; echo $GREETING; ls /app/own 2>/dev/null || echo apart"); got != "/tmp\nno\napart\n" {
		t.Errorf("with options: %q", got)
	}

	again, w := buildTemplate(t, p, m, dir)
	if want := "cached 1, cached 2, cached 3, cached 4"; w.kinds() != want || again.Digest != s.Digest {
		t.Errorf("second build: %s, want %s", w.kinds(), want)
	}
	// Another one with the same beginning.
	put(t, dir, map[string]string{"one": "2"})
	changed := *m
	changed.Name = "changed"
	if _, w = buildTemplate(t, p, &changed, dir); w.kinds() != "cached 1, cached 2, started 3, done 3, started 4, done 4" {
		t.Errorf("build of a change: %s", w.kinds())
	}
	// A template over a template.
	child := &model.Template{Name: "child", Base: model.Base{From: "changed"}, Build: runSteps("cat bin/one > two")}
	buildTemplate(t, p, child, "")
	sb = create(t, p, providers.CreateRequest{Template: "child"})
	if got := mustSh(t, sb, "cat /app/two; echo $GREETING"); got != "2hello there\n" {
		t.Errorf("child: %q", got)
	}
	// The image is for providers that cannot show this machine.
	buildTemplate(t, p, &model.Template{Name: "host", Base: model.Base{Host: true, Image: "example.com/none:1"}, Requires: []string{"sh"}}, "")
	if err := p.RemoveTemplate(t.Context(), "host"); err != nil {
		t.Error(err)
	}
	// A sandbox keeps its files when the template goes.
	if err := p.RemoveTemplate(t.Context(), "child"); err != nil {
		t.Fatal(err)
	}
	if got := mustSh(t, sb, "cat /app/two"); got != "2" {
		t.Errorf("after the removal: %q", got)
	}
	if _, err := p.Create(t.Context(), providers.CreateRequest{Template: "child"}); errdefs.CodeOf(err) != "E2001" {
		t.Errorf("removed template: %v", err)
	}
	if err := p.RemoveTemplate(t.Context(), "child"); errdefs.CodeOf(err) != "E2001" {
		t.Errorf("second removal: %v", err)
	}
	all, err := p.ListTemplates(t.Context())
	if err != nil || len(all) != 2 || all[0].Name != "changed" || all[1].Name != "tools" || all[1].Size == 0 {
		t.Errorf("list: %+v, %v", all, err)
	}
	killSandboxes(t, p)
}

func killSandboxes(t *testing.T, p *Provider) {
	t.Helper()
	page, err := p.List(t.Context(), providers.ListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range page.Sandboxes {
		if err := p.Kill(t.Context(), sb.ID); err != nil {
			t.Error(err)
		}
	}
}

func TestBuildFails(t *testing.T) {
	p := templateProvider(t)
	m := &model.Template{Name: "bad", Build: runSteps("echo good > /home/user/x", "echo one; echo two >&2; exit 3", "true")}
	w := &watcher{}
	_, err := p.BuildTemplate(t.Context(), providers.TemplateBuild{Model: m, Progress: w.add})
	step, ok := errors.AsType[*providers.BuildStepError](err)
	if errdefs.CodeOf(err) != "E7010" || !ok {
		t.Fatalf("error: %v", err)
	}
	if step.Step != 2 || step.Steps != 3 || step.Status != "exit status 3" || !strings.Contains(step.Text, "echo one") || !slices.Contains(step.Last, "one") || !slices.Contains(step.Last, "two") {
		t.Errorf("step: %+v", step)
	}
	if !strings.Contains(err.Error(), "step 2 of 3") || !strings.Contains(err.Error(), "two") {
		t.Errorf("text: %v", err)
	}
	if hint := errorHint(err); hint != "" {
		t.Errorf("hint %q", hint)
	}
	nothingLeft(t, p)

	// One that was built before stays as it was.
	good := &model.Template{Name: "bad", Build: runSteps("echo good > /home/user/x")}
	s, _ := buildTemplate(t, p, good, "")
	before := layerNames(t, p)
	if _, err := p.BuildTemplate(t.Context(), providers.TemplateBuild{Model: m, Fresh: true}); errdefs.CodeOf(err) != "E7010" {
		t.Errorf("error: %v", err)
	}
	if after := layerNames(t, p); !slices.Equal(slices.Sorted(slices.Values(before)), slices.Sorted(slices.Values(after))) {
		t.Errorf("layers: %q, before %q", after, before)
	}
	all, err := p.ListTemplates(t.Context())
	if err != nil || len(all) != 1 || all[0].Digest != s.Digest {
		t.Errorf("list: %+v, %v", all, err)
	}
}

func TestBuildCancelled(t *testing.T) {
	p := templateProvider(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	m := &model.Template{Name: "slow", Build: runSteps("true", "echo waiting; sleep 1000")}
	_, err := p.BuildTemplate(ctx, providers.TemplateBuild{Model: m, Progress: func(e providers.BuildEvent) {
		if e.Text == "waiting" {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) || errdefs.CodeOf(err) != "E5004" {
		t.Errorf("error: %v", err)
	}
	nothingLeft(t, p)
}

func TestBuildTwiceAtOnce(t *testing.T) {
	p := templateProvider(t)
	m := &model.Template{Name: "twice", Build: runSteps("sleep 0.3; head -c 8 /dev/urandom | od -An -tx1 > /home/user/id")}
	var watch [4]watcher
	var wg sync.WaitGroup
	for i := range watch {
		wg.Go(func() {
			if _, err := p.BuildTemplate(t.Context(), providers.TemplateBuild{Model: m, Progress: watch[i].add}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	built := 0
	for i := range watch {
		if watch[i].kinds() == "started 1, done 1" {
			built++
		}
	}
	if built != 1 {
		t.Errorf("%d builds ran the step", built)
	}
}

func TestBuildRefusals(t *testing.T) {
	p := templateProvider(t)
	dir := t.TempDir()
	for name, c := range map[string]struct {
		m    model.Template
		code errdefs.Code
		text string
	}{
		"no name":       {model.Template{}, "E2004", "no name"},
		"base":          {model.Template{Name: "base"}, "E2004", "name base"},
		"dockerfile":    {model.Template{Name: "x", Dockerfile: "FROM a"}, "E8004", ""}, // no engine, or no support for images in this program
		"two kinds":     {model.Template{Name: "x", Build: []model.Step{{Run: "a", Pip: []string{"b"}}}}, "E2004", "step 1"},
		"no kind":       {model.Template{Name: "x", Build: []model.Step{{}}}, "E2004", "step 1"},
		"option":        {model.Template{Name: "x", Build: []model.Step{{Pip: []string{"--index-url=x"}}}}, "E2004", "name of a package"},
		"apt":           {model.Template{Name: "x", Build: []model.Step{{Apt: []string{"jq"}}}}, "E8004", ""},
		"outside":       {model.Template{Name: "x", Build: []model.Step{{Copy: &model.Copy{Src: "../x", Dest: "/data"}}}}, "E2004", "folder of the template"},
		"not there":     {model.Template{Name: "x", Build: []model.Step{{Copy: &model.Copy{Src: "x", Dest: "/data"}}}}, "E2004", "no such file"},
		"network all":   {model.Template{Name: "x", BuildNetwork: "all"}, "E8004", "all"},
		"no such base":  {model.Template{Name: "x", Base: model.Base{From: "nobody"}}, "E2001", "nobody"},
		"too many base": {model.Template{Name: "x", Base: model.Base{From: "a", Image: "b"}}, "E2004", "base"},
		"requires":      {model.Template{Name: "x", Requires: []string{"sh", "no-such-program"}}, "E7010", "no-such-program"},
		"into usr":      {model.Template{Name: "x", Workdir: "/usr/x"}, "E2011", "/usr"},
	} {
		_, err := p.BuildTemplate(t.Context(), providers.TemplateBuild{Model: &c.m, Files: os.DirFS(dir)})
		if errdefs.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %s with %q", name, err, c.code, c.text)
		}
	}
	for _, name := range []string{"./dir", "nothing", "/abs/dir"} {
		_, err := p.Create(t.Context(), providers.CreateRequest{Template: name})
		if errdefs.CodeOf(err) != "E2001" || !strings.Contains(errorHint(err), "sandbox template build") {
			t.Errorf("template %s: %v", name, err)
		}
	}
}

// A name under which nothing was built is told with what there is, and with what is
// probably meant.
func TestTemplateUnknownName(t *testing.T) {
	p := templateProvider(t)
	if _, err := p.BuildTemplate(t.Context(), providers.TemplateBuild{Model: &model.Template{Name: "workbench"}}); err != nil {
		t.Fatal(err)
	}
	for name, hint := range map[string]string{
		"workbnech": `did you mean "workbench"? Otherwise `, "bsae": `did you mean "base"?`,
		"something": "",
	} {
		ofCreate, ofRemove := hint, hint
		if hint == "" {
			ofCreate, ofRemove = "a template is built before it is used: sandbox template build REF", "sandbox template ls has the names"
		}
		_, err := p.Create(t.Context(), providers.CreateRequest{Template: name})
		if errdefs.CodeOf(err) != "E2001" || !strings.Contains(err.Error(), "/local/templates holds base, workbench") || !strings.HasPrefix(errorHint(err), ofCreate) {
			t.Errorf("%s: %v, hint %q", name, err, errorHint(err))
		}
		if err := p.RemoveTemplate(t.Context(), name); errdefs.CodeOf(err) != "E2001" || !strings.HasPrefix(errorHint(err), ofRemove) {
			t.Errorf("remove %s: %v, hint %q", name, err, errorHint(err))
		}
	}
}

func errorHint(err error) string {
	if e, ok := errors.AsType[*errdefs.Error](err); ok {
		return e.Hint()
	}
	return ""
}

// The steps have these capabilities and no others, over nobody's files but those
// of the sandbox; a sandbox made from the template has none.
func TestBuildPrivileges(t *testing.T) {
	p := templateProvider(t)
	status := "grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs)' /proc/self/status; id -u"
	m := &model.Template{Name: "caps", Build: runSteps(status,
		"touch /home/user/f; chown 1234:2345 /home/user/f; chmod 600 /home/user/f; cat /home/user/f",
		"mount -t tmpfs x /mnt 2>/dev/null && exit 1; mknod /tmp/null c 1 3 2>/dev/null && exit 1; hostname x 2>/dev/null && exit 1; true")}
	if mappingKind() == mapSingle {
		m.Build = runSteps(status)
	}
	_, w := buildTemplate(t, p, m, "")
	caps, uid := "00000000000000cb", "0"
	if mappingKind() == mapSingle {
		caps, uid = "0000000000000000", "1000"
	}
	want := "CapInh:\t0000000000000000\nCapPrm:\t" + caps + "\nCapEff:\t" + caps + "\nCapBnd:\t" + caps + "\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\n" + uid
	if got := w.output(); !strings.HasPrefix(got, want) {
		t.Errorf("a step has\n%s\nwant\n%s", got, want)
	}
	sb := create(t, p, providers.CreateRequest{Template: "caps", User: map[bool]string{true: "root", false: "user"}[uid == "0"]})
	if got := mustSh(t, sb, status); strings.Contains(got, "cb\n") || !strings.Contains(got, "CapBnd:\t0000000000000000") {
		t.Errorf("a sandbox has\n%s", got)
	}
	if uid == "0" {
		if got := mustSh(t, sb, "stat -c '%u %g %a' /home/user/f"); got != "1234 2345 600\n" {
			t.Errorf("owner of the file: %s", got)
		}
	}
	killSandboxes(t, p)
}

// rulesFor permits a host, also where it has an address that no host on the
// internet has.
func rulesFor(t *testing.T, host string) string {
	t.Helper()
	ips, err := net.LookupHost(host)
	if err != nil {
		missing(t, host+" has no address: "+err.Error())
	}
	rules := host
	for _, ip := range ips {
		if a, err := netip.ParseAddr(ip); err == nil && a.Is4() {
			rules += "," + ip
		}
	}
	return rules
}

// missing skips the test, but in CI.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// A package of the registry gets there only when its host is declared.
func TestBuildInstallsPackage(t *testing.T) {
	p := templateProvider(t)
	if _, err := exec.LookPath("/usr/bin/npm"); err != nil {
		if _, err = exec.LookPath("/usr/local/bin/npm"); err != nil {
			missing(t, "no npm below /usr")
		}
	}
	ask := exec.Command("npm", "config", "get", "registry")
	ask.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()} // as in the sandbox: nobody's settings
	asked, err := ask.Output()
	if err != nil {
		t.Fatal(err)
	}
	registry, err := url.Parse(strings.TrimSpace(string(asked)))
	if err != nil || registry.Hostname() == "" {
		t.Fatalf("npm's registry: %q, %v", asked, err)
	}
	m := &model.Template{Name: "node", Build: []model.Step{{Npm: []string{"is-odd@3.0.1"}}},
		Env:          map[string]string{"NODE_EXTRA_CA_CERTS": "/etc/ssl/certs/ca-certificates.crt", "NPM_CONFIG_FETCH_RETRIES": "0"},
		BuildNetwork: rulesFor(t, registry.Hostname())}
	closed := *m
	closed.BuildNetwork = ""
	if _, err := p.BuildTemplate(t.Context(), providers.TemplateBuild{Model: &closed}); errdefs.CodeOf(err) != "E7010" {
		t.Errorf("without a declared network: %v", err)
	}
	buildTemplate(t, p, m, "")
	sb := create(t, p, providers.CreateRequest{Template: "node"})
	if got := mustSh(t, sb, `node -p 'require("is-odd")(3)'`); got != "true\n" {
		t.Errorf("the package: %q", got)
	}
	if out, _ := sh(t, sb, "curl -sS -m 5 https://"+registry.Hostname()+" 2>&1"); !strings.Contains(out, "resolve") {
		t.Errorf("the sandbox reaches the registry: %q", out)
	}
	if _, w := buildTemplate(t, p, m, ""); w.kinds() != "cached 1" {
		t.Errorf("second build: %s", w.kinds())
	}
	killSandboxes(t, p)
}

func TestTemplateStartsAndIsReady(t *testing.T) {
	p := templateProvider(t)
	serve := "exec python3 -m http.server 8123 --bind 127.0.0.1"
	buildTemplate(t, p, &model.Template{Name: "web", Start: serve, Ready: &model.Probe{Port: 8123}}, "")
	sb := create(t, p, providers.CreateRequest{Template: "web"})
	if out := mustSh(t, sb, "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8123/"); out != "200" {
		t.Errorf("when Create returned: %q", out)
	}
	if err := p.Hibernate(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	woken, err := p.Connect(t.Context(), sb.ID, providers.ConnectRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if out := mustSh(t, woken, "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8123/"); out != "200" {
		t.Errorf("when Connect returned: %q", out)
	}
	killSandboxes(t, p)
	for name, c := range map[string]struct {
		m    model.Template
		want []string
	}{
		"ends":    {model.Template{Start: "echo no such thing; exit 7", Ready: &model.Probe{Port: 8123}}, []string{"exit status 7", "no such thing"}},
		"port":    {model.Template{Start: "sleep 100", Ready: &model.Probe{Port: 8123, Timeout: 300e6}}, []string{"300ms", "port 8123"}},
		"command": {model.Template{Ready: &model.Probe{Command: "echo still starting; false", Timeout: 300e6}}, []string{"still starting", "exit status 1"}},
	} {
		c.m.Name = name
		buildTemplate(t, p, &c.m, "")
		_, err := p.Create(t.Context(), providers.CreateRequest{Template: name})
		for _, w := range c.want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want %q", name, err, w)
			}
		}
		noSandboxes(t, p)
	}
}

// Without several users inside nobody can install system packages, which is said
// before anything runs.
func TestBuildSystemPackages(t *testing.T) {
	step := model.Step{Apt: []string{"jq"}}
	b := &templateBuild{m: &model.Template{}, mapping: mapSingle}
	if _, err := b.checkStep(1, step); errdefs.CodeOf(err) != "E8004" || !strings.Contains(err.Error(), "several users") {
		t.Errorf("single mapping: %v", err)
	}
	b = &templateBuild{m: &model.Template{}, mapping: mapBlock, host: true}
	if _, err := b.checkStep(1, step); errdefs.CodeOf(err) != "E8004" || !strings.Contains(errorHint(err), "image") {
		t.Errorf("tree of this machine: %v", err)
	}
	b = &templateBuild{m: &model.Template{}, mapping: mapSubid}
	if s, err := b.checkStep(1, step); err != nil || !slices.Contains(s.args, "jq") {
		t.Errorf("image: %+v, %v", s, err)
	}
}

// wheel is a package of Python.
func wheel(t *testing.T, path string) {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, f := range []struct{ name, text string }{
		{"tinypkg.py", "answer = 42\n\ndef main():\n    print(answer)\n"},
		{"tinypkg-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tinypkg\nVersion: 1.0\n"},
		{"tinypkg-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{"tinypkg-1.0.dist-info/entry_points.txt", "[console_scripts]\ntinypkg = tinypkg:main\n"},
		{"tinypkg-1.0.dist-info/RECORD", "tinypkg.py,,\ntinypkg-1.0.dist-info/METADATA,,\ntinypkg-1.0.dist-info/WHEEL,,\ntinypkg-1.0.dist-info/entry_points.txt,,\ntinypkg-1.0.dist-info/RECORD,,\n"},
	} {
		out, err := w.Create(f.name)
		if err == nil {
			_, err = out.Write([]byte(f.text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), os.WriteFile(path, b.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func TestBuildPip(t *testing.T) {
	if out, err := exec.Command("/usr/bin/python3", "-m", "pip", "--version").CombinedOutput(); err != nil {
		missing(t, "no pip for /usr/bin/python3: "+string(out))
	}
	p := templateProvider(t)
	dir := t.TempDir()
	const name = "tinypkg-1.0-py3-none-any.whl"
	wheel(t, filepath.Join(dir, name))
	m := &model.Template{Name: "py", Build: []model.Step{{Copy: &model.Copy{Src: name, Dest: "/tmp/"}}, {Pip: []string{"/tmp/" + name}}}}
	buildTemplate(t, p, m, dir)
	sb := create(t, p, providers.CreateRequest{Template: "py"})
	if got := mustSh(t, sb, "tinypkg; python3 -c 'import tinypkg; print(tinypkg.answer)'"); got != "42\n42\n" {
		t.Errorf("the package: %q", got)
	}
	// A template over it has it too.
	buildTemplate(t, p, &model.Template{Name: "pychild", Base: model.Base{From: "py"}}, "")
	sb = create(t, p, providers.CreateRequest{Template: "pychild"})
	if got := mustSh(t, sb, "tinypkg"); got != "42\n" {
		t.Errorf("in the child: %q", got)
	}
	killSandboxes(t, p)
}

// What a killed process was building is removed by the next one.
func TestBuildOfKilledProcess(t *testing.T) {
	p := templateProvider(t)
	if _, err := p.ListTemplates(t.Context()); err != nil { // opens the state directory
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), envRole+"=build", "LOCAL_TEST_STATE="+p.root)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "second step\n" {
		t.Errorf("the process says %q, %v", line, err)
	}
	if names, _ := p.tree.templates.allNames(); len(names) == 0 || len(layerNames(t, p)) == 0 {
		t.Errorf("nothing is being built: %q", names)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()                                                              // killed
	for end := time.Now().Add(killLimit); ; time.Sleep(10 * time.Millisecond) { // its sandbox ends by itself
		if err := p.GC(t.Context()); err != nil {
			t.Error(err)
		}
		if names, err := p.tree.boxes.names(); err == nil && len(names) == 0 || time.Now().After(end) {
			break
		}
	}
	nothingLeft(t, p)
}

func init() {
	roles["build"] = func() error {
		p, err := New(providers.Config{StateDir: os.Getenv("LOCAL_TEST_STATE")})
		if err != nil {
			return err
		}
		m := &model.Template{Name: "killed", Build: runSteps("echo x > /home/user/x", "echo second step; sleep 1000")}
		_, err = p.BuildTemplate(context.Background(), providers.TemplateBuild{Model: m, Progress: func(e providers.BuildEvent) {
			if e.Kind == providers.BuildOutput {
				fmt.Println(e.Text)
			}
		}})
		return err
	}
}

// The policy of a template holds in its sandboxes, and in those that come of them.
func TestTemplatePolicy(t *testing.T) {
	p := templateProvider(t)
	buildTemplate(t, p, &model.Template{Name: "strict", Build: runSteps("ls > /home/user/list"),
		Policy: model.Policy{Commands: model.CommandPolicy{Deny: []model.CommandRule{{Program: "ls"}}}}}, "")
	check := func(what string, sb *providers.Sandbox) {
		t.Helper()
		c, err := envd.New(&envd.Options{Dial: sb.Data.Dial, Token: sb.Data.Token.Reveal()})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := follow(t.Context(), c, []string{"ls"}, "", func(string) {}); err == nil {
			t.Errorf("%s: ls runs", what)
		}
		if err := follow(t.Context(), c, []string{"cat", "/home/user/list"}, "", func(string) {}); err != nil {
			t.Errorf("%s: cat: %v", what, err)
		}
	}
	sb := create(t, p, providers.CreateRequest{Template: "strict"})
	check("sandbox", sb)
	s := snapshot(t, p, sb.ID)
	check("child of its snapshot", create(t, p, providers.CreateRequest{Snapshot: s.ID}))
	if err := p.Hibernate(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	woken, err := p.Connect(t.Context(), sb.ID, providers.ConnectRequest{})
	if err != nil {
		t.Fatal(err)
	}
	check("woken", woken)
	if err := p.DeleteSnapshot(t.Context(), s.ID); err != nil {
		t.Error(err)
	}
	killSandboxes(t, p)
}
