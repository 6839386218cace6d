package policy_test

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/runtime/endpoint"
	"github.com/agent-sandbox/sandbox-go/runtime/policy"
	"github.com/agent-sandbox/sandbox-go/templates"
)

// TestPage reads the example of the page, which has every key, and compares the
// page with the types.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(page)
	if block == nil {
		t.Fatal("the page has no example")
	}
	m, err := templates.Parse(block[1], "template.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.Compile(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	rows := []endpoint.Endpoint{{Name: "process.exec"}, {Name: "process.signal"}, {Name: "ports.connect"}, {Name: "dev_tools.git_status", Off: true}}
	if err := p.Know(rows); err != nil {
		t.Fatal(err)
	}
	if !p.On("process.exec") || p.On("process.signal") || p.On("ports.connect") || !p.On("dev_tools.git_status") {
		t.Error("the switches of the example do something else")
	}
	for _, v := range []any{m.Policy.Files, m.Policy.Commands} {
		for i, typ := 0, reflect.TypeOf(v); i < typ.NumField(); i++ {
			key, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if reflect.ValueOf(v).Field(i).IsZero() {
				t.Errorf("the example has no %s", key)
			}
			if !strings.Contains(string(page), "\n| `"+key+"` |") {
				t.Errorf("no table has %s", key)
			}
		}
	}
}
