package acceptance

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/acceptance/placed"
	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// TestPlaced calls functions whose directives say where they run, and with what.
func TestPlaced(t *testing.T) {
	sbtest.NeedSandbox(t)
	ctx := t.Context()
	t.Run("files", func(t *testing.T) {
		got, err := placed.Words(ctx)
		want := []string{"/opt/words/deep/more.txt two", "/opt/words/words.txt one", "/words.txt one"}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("got %q, %v", got, err)
		}
	})
	t.Run("secrets", func(t *testing.T) {
		if _, err := placed.Login(ctx); !errors.Is(err, sandboxfn.ErrSecretNotFound) {
			t.Errorf("without them: %v", err)
		}
		t.Setenv("PLACED_TOKEN", "a")
		t.Setenv("PLACED_PLAIN", "b")
		if got, err := placed.Login(ctx); got != "a b" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	})
	t.Run("volumes", func(t *testing.T) {
		want := ""
		for _, line := range []string{"one", "two"} {
			want += line + "\n"
			if got, err := placed.Remember(ctx, line); got != want || err != nil {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
		}
		if got, err := placed.Recall(ctx); got != want || err != nil {
			t.Errorf("read-only: %q, %v", got, err)
		}
	})
	t.Run("template", func(t *testing.T) {
		if _, err := placed.Built(ctx); !errors.Is(err, sandboxfn.ErrTemplateNotFound) {
			t.Errorf("before it is built: %v", err)
		}
		m := &model.Template{Name: "placed-tools", Env: map[string]string{"PLACED_TEMPLATE": "env"}, Build: []model.Step{
			{Run: "mkdir -p /opt/template/bin && printf '#!/bin/sh\\necho hello\\n' > /opt/template/bin/greet && chmod 755 /opt/template/bin/greet"},
		}}
		if _, err := sandboxfn.BuildTemplate(ctx, m, nil); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := sandboxfn.RemoveTemplate(context.Background(), "placed-tools"); err != nil {
				t.Error(err)
			}
		}()
		if got, err := placed.Built(ctx); got != "hello\nenv" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	})
	t.Run("fresh", func(t *testing.T) {
		for range 3 {
			if first, err := placed.Once(ctx); !first || err != nil {
				t.Errorf("%v, %v", first, err)
			}
		}
	})
	t.Run("concurrency", func(t *testing.T) {
		var pids [4]int
		var wg sync.WaitGroup
		for i := range pids {
			wg.Go(func() {
				var err error
				if pids[i], err = placed.Together(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if slices.Min(pids[:]) != slices.Max(pids[:]) {
			t.Errorf("workers %v", pids)
		}
	})
	t.Run("user and directory", func(t *testing.T) {
		uid, dir, err := placed.Where(ctx)
		if (uid != 0 || dir != "/tmp" || err != nil) && !errors.Is(err, sandboxfn.ErrUserNotAvailable) {
			t.Errorf("%d %s, %v", uid, dir, err)
		}
	})
	t.Run("image and gpu", func(t *testing.T) {
		for _, err := range []error{placed.Pictured(ctx), placed.Drawn(ctx)} {
			if !errors.Is(err, sandboxfn.ErrNotSupported) {
				t.Errorf("got %v", err)
			}
		}
	})
}
