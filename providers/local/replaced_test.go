//go:build linux

package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
)

// Files of this machine are replaced while sandboxes are made that show them.
func TestReplacedWhileShown(t *testing.T) {
	p := testProvider(t)
	dir := t.TempDir()
	var expose []string
	for i := range 8 {
		expose = append(expose, filepath.Join(dir, fmt.Sprint(i)))
	}
	replace := func() error {
		var errs []error
		for _, f := range expose {
			errs = append(errs, os.WriteFile(f+".new", nil, 0o644), os.Rename(f+".new", f))
		}
		return errors.Join(errs...)
	}
	if err := replace(); err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		var wg sync.WaitGroup
		wg.Go(func() {
			// Once for each creation, at another moment of it each time.
			time.Sleep(time.Duration(i%20) * time.Millisecond)
			if err := replace(); err != nil {
				t.Error(err)
			}
		})
		sb, err := p.Create(t.Context(), providers.CreateRequest{Root: providers.RootView{Expose: expose}})
		wg.Wait()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Kill(t.Context(), sb.ID); err != nil {
			t.Error(err)
		}
	}
}
