//go:build linux

package local

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// Without groups somebody who can get some is asked, once, and the reason says
// what came of it.
func TestDelegator(t *testing.T) {
	defer RegisterDelegator(nil)
	asked := 0
	RegisterDelegator(func(context.Context) error {
		asked++
		return errors.New("nobody listens")
	})
	h := findGroups("", "/")
	defer h.tidy()
	if h.mechanism(limitMemory) != "" {
		if asked != 0 {
			t.Error("asked although there are groups")
		}
	} else if asked != 1 || !strings.Contains(h.why[limitMemory], "nobody listens") {
		t.Errorf("asked %d times: %s", asked, h.why[limitMemory])
	}
	for range 2 {
		if err := askDelegator(); err == nil || asked != 1 {
			t.Errorf("asked %d times: %v", asked, err)
		}
	}
	// A group that was named is the one that is meant.
	RegisterDelegator(func(context.Context) error { t.Error("asked"); return nil })
	if h := findGroups("/no/such/group", "/"); h.mechanism(limitMemory) != "" {
		t.Error("limits from nowhere")
	}
}
