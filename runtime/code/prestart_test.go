//go:build linux

package code

import (
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// TestPrestart: what the template names is there before the first cell, which runs in
// it; a name that is none, and one whose program is missing, hold nothing up.
func TestPrestart(t *testing.T) {
	l := newLab(t, model.Interpreter{Prestart: []string{"sh", "cobol", "missing"}, Programs: map[string]string{"missing": "/not/there"}})
	if got := l.List(); len(got) != 0 {
		t.Errorf("before: %d contexts", len(got))
	}
	l.Prestart()
	l.good("bash", "x=5") // may come before the interpreter is there
	var first *Context
	for _, c := range l.List() {
		if c.Language == "bash" {
			first = c
		}
	}
	if first == nil {
		t.Fatal("no context of bash")
	}
	if a := l.good("bash", "echo $x"); a.stdout != "5\n" {
		t.Errorf("got %q", a.stdout)
	}
	for _, c := range l.List() {
		if c.Language == "bash" && c != first {
			t.Error("two default contexts of bash")
		}
	}
}

// TestPrestartReady: the process is there without any cell, counts as a context, and
// ends when nobody uses it.
func TestPrestartReady(t *testing.T) {
	l := newLab(t, model.Interpreter{Prestart: []string{"bash"}, MaxContexts: 1, IdleTimeout: time.Second})
	l.Prestart()
	until(t, "the interpreter runs", func() bool {
		all := l.List()
		return len(all) == 1 && all[0].running()
	})
	if _, err := l.Create(l.ctx, "bash", ""); err == nil {
		t.Error("one context more than there may be")
	}
	until(t, "it ends", func() bool { return len(l.List()) == 0 })
}

// TestPrestartEnd: a service that ends while interpreters start leaves nothing.
func TestPrestartEnd(t *testing.T) {
	l := newLab(t, model.Interpreter{Prestart: []string{"bash", "python"}})
	l.Prestart()
}

func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// running reports whether c has a process that takes cells.
func (c *Context) running() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.eng != nil
}
