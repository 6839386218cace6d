package environment

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
)

func TestLevels(t *testing.T) {
	template := map[string]string{"A": "template", "B": "template", "C": "template"}
	e := New(Options{Template: template, Sandbox: map[string]string{"B": "sandbox", "C": "sandbox"}})
	names, err := e.Set(map[string]string{"C": "set", "D": "set"})
	if err != nil || !slices.Equal(names, []string{"C", "D"}) {
		t.Fatal(names, err)
	}
	template["A"] = "changed"
	env := map[string]string{"A": "default", "Z": "default"}
	e.AddTo(env)
	want := map[string]string{"A": "template", "B": "sandbox", "C": "set", "D": "set", "Z": "default"}
	if !maps.Equal(env, want) {
		t.Errorf("%v, want %v", env, want)
	}
}

func TestSecretsAreNotListed(t *testing.T) {
	e := New(Options{
		Template: map[string]string{"GITHUB_TOKEN": "x", "PLAIN": "1"},
		Sandbox:  map[string]string{"GIVEN": "x", "db_password": "x", "OTHER": "2"},
		Secrets:  []string{"GIVEN"},
	})
	if _, err := e.Set(map[string]string{"API_KEY": "x"}); err != nil {
		t.Fatal(err)
	}
	if got, want := e.Listed(), map[string]string{"PLAIN": "1", "OTHER": "2"}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	env := map[string]string{}
	if e.AddTo(env); len(env) != 6 {
		t.Errorf("commands get %v", env)
	}
}

func TestSetRefuses(t *testing.T) {
	e := New(Options{Sandbox: map[string]string{"A": "1"}})
	for _, name := range []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "SANDBOX_ID", "SANDBOX_SERVER_TOKEN", "E2B_SANDBOX"} {
		_, err := e.Set(map[string]string{"A": "2", name: "x"})
		if p, ok := errors.AsType[*ProtectedError](err); !ok || p.Name != name {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, value := range map[string]string{"": "", "A=B": "", "A\x00": "", "B": "\x00"} {
		if _, err := e.Set(map[string]string{"A": "2", name: value}); err == nil {
			t.Errorf("%q=%q was set", name, value)
		}
	}
	if got := e.Listed(); got["A"] != "1" || len(got) != 1 {
		t.Errorf("a refused call set something: %v", got)
	}
	var none *Environment
	if _, err := none.Set(map[string]string{"A": "1"}); err == nil {
		t.Error("nobody can have taken it")
	}
	if len(none.Listed()) != 0 {
		t.Error("nil has variables")
	}
}

func TestConcurrentUse(t *testing.T) {
	e := New(Options{})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 50 {
				if _, err := e.Set(map[string]string{fmt.Sprintf("V%d_%d", i, n): "x"}); err != nil {
					t.Error(err)
				}
				e.Listed()
			}
		})
	}
	wg.Wait()
	if n := len(e.Listed()); n != 400 {
		t.Errorf("%d variables, want 400", n)
	}
}
