package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// rows is a small table.
var rows = []endpoint.Endpoint{
	{Name: "core.health", Open: true}, {Name: "core.capabilities"},
	{Name: "process.exec"}, {Name: "process.exec"}, {Name: "process.start"}, {Name: "process.list"}, {Name: "process.signal"},
	{Name: "terminal.open"}, {Name: "file_ops.upload"}, {Name: "file_ops.download"},
	{Name: "dev_tools.code_run"}, {Name: "dev_tools.git_status", Off: true}, {Name: "dev_tools.git_diff", Off: true},
	{Name: "ports.connect"},
}

func TestSwitches(t *testing.T) {
	everything := "core.capabilities core.health dev_tools.code_run file_ops.download file_ops.upload ports.connect process.exec process.list process.signal process.start terminal.open"
	for _, c := range []struct {
		name   string
		server *model.Server
		env    map[string]string
		want   string // what is on
	}{
		{"nothing said", nil, nil, everything},
		{"empty section", &model.Server{}, nil, everything},
		{"empty list", &model.Server{Enable: []string{}}, nil, "core.capabilities core.health"},
		{"group of another runtime", &model.Server{Disable: []string{"agents", "agents.codex"}}, nil, everything},
		{"one group", &model.Server{Enable: []string{"process"}}, nil, "core.capabilities core.health process.exec process.list process.signal process.start"},
		{"group with a star", &model.Server{Enable: []string{"process.*"}}, nil, "core.capabilities core.health process.exec process.list process.signal process.start"},
		{"one endpoint", &model.Server{Enable: []string{"process.list"}}, nil, "core.capabilities core.health process.list"},
		{"off by default", &model.Server{Enable: []string{"dev_tools.git_diff"}}, nil, "core.capabilities core.health dev_tools.git_diff"},
		{"the default and more", &model.Server{Enable: []string{"default", "dev_tools.git_*"}, Disable: []string{"dev_tools.git_status", "ports", "terminal", "file_ops"}}, nil,
			"core.capabilities core.health dev_tools.code_run dev_tools.git_diff process.exec process.list process.signal process.start"},
		{"disable beats enable", &model.Server{Enable: []string{"process.exec", "process.list"}, Disable: []string{"process.exec"}}, nil, "core.capabilities core.health process.list"},
		{"all off", &model.Server{Disable: []string{"*"}}, nil, "core.capabilities core.health"},
		{"environment narrows", nil, map[string]string{EnvEnable: "process, terminal", EnvDisable: "process.exec"}, "core.capabilities core.health process.list process.signal terminal.open"},
		{"environment does not widen", &model.Server{Enable: []string{"process.list"}}, map[string]string{EnvEnable: "process,file_ops"}, "core.capabilities core.health process.list"},
		{"environment does not switch on what is off", nil, map[string]string{EnvEnable: "dev_tools"}, "core.capabilities core.health dev_tools.code_run"},
		{"environment disables all", nil, map[string]string{EnvDisable: "*"}, "core.capabilities core.health"},
		{"set but empty enables nothing", nil, map[string]string{EnvEnable: ""}, "core.capabilities core.health"},
		{"capabilities", &model.Server{Enable: []string{"shell", "code"}}, nil, "core.capabilities core.health dev_tools.code_run process.exec process.list process.signal process.start"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := Compile(&model.Template{Server: c.server}, func(k string) (string, bool) { v, ok := c.env[k]; return v, ok })
			if err != nil {
				t.Fatal(err)
			}
			if p.On("process.exec") || !p.On("core.health") {
				t.Error("before the names are known, not only core answers")
			}
			if err := p.Know(rows); err != nil {
				t.Fatal(err)
			}
			var on []string
			for _, r := range rows {
				if p.Endpoint(r.Name) == nil {
					on = append(on, r.Name)
				}
			}
			slices.Sort(on)
			if got := strings.Join(slices.Compact(on), " "); got != c.want {
				t.Errorf("on is\n%s\nwant\n%s", got, c.want)
			}
			if p.On("process.unheard_of") {
				t.Error("an endpoint that nobody listed answers")
			}
		})
	}
}

func TestUnknownSwitches(t *testing.T) {
	for _, c := range []struct {
		server *model.Server
		env    map[string]string
		want   string
	}{
		{&model.Server{Enable: []string{"proces"}}, nil, `server.enable: there is no endpoint "proces"; did you mean "process"?`},
		{&model.Server{Enable: []string{"process.exe"}}, nil, `server.enable: there is no endpoint "process.exe"; did you mean "process.exec"?`},
		{&model.Server{Disable: []string{"file_ops.dowload"}}, nil, `server.disable: there is no endpoint "file_ops.dowload"; did you mean "file_ops.download"?`},
		{&model.Server{Disable: []string{"browser.*"}}, nil, `server.disable: there is no endpoint "browser.*"; groups are core, dev_tools, file_ops, ports, process, terminal`},
		{&model.Server{Disable: []string{"core"}}, nil, `server.disable: "core" cannot be switched off`},
		{&model.Server{Disable: []string{"core.health"}}, nil, `server.disable: "core.health" cannot be switched off`},
		{&model.Server{Disable: []string{"default"}}, nil, `server.disable: there is no endpoint "default"`},
		{nil, map[string]string{EnvDisable: "process.exec,termnal"}, `SANDBOX_SERVER_DISABLE: there is no endpoint "termnal"; did you mean "terminal"?`},
		{nil, map[string]string{EnvEnable: "x y z"}, `SANDBOX_SERVER_ENABLE: there is no endpoint "x y z"`},
	} {
		p, err := Compile(&model.Template{Server: c.server}, func(k string) (string, bool) { v, ok := c.env[k]; return v, ok })
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Know(rows); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
		if p.On("process.exec") {
			t.Error("answers in spite of the mistake")
		}
	}
}

func TestNoPolicy(t *testing.T) {
	var p *Policy
	if err := p.Know(rows); err != nil || !p.On("process.exec") || p.Endpoint("anything") != nil || p.Files() != nil || p.Commands() != nil {
		t.Error("a nil Policy is in the way")
	}
	p, err := Compile(nil, nil)
	if err != nil || p.Files() != nil || p.Commands() != nil {
		t.Errorf("an empty template has rules: %v, %v", p, err)
	}
}
