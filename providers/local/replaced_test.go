//go:build linux

package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

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
	stop, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for stop.Err() == nil {
			if err := replace(); err != nil {
				t.Error(err)
				return
			}
			// Far more often than packages change, and seldom enough for a second try.
			var ts = unix.NsecToTimespec(150e6)
			_ = unix.Nanosleep(&ts, nil)
		}
	})
	for range 60 {
		sb, err := p.Create(t.Context(), providers.CreateRequest{Root: providers.RootView{Expose: expose}})
		if err != nil {
			t.Error(err)
			break
		}
		if err := p.Kill(t.Context(), sb.ID); err != nil {
			t.Error(err)
		}
	}
	cancel()
	wg.Wait()
}
