//go:build linux

package local

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

func TestWholeDisk(t *testing.T) {
	sys := t.TempDir()
	for path, content := range map[string]string{
		"devices/sda/dev": "8:0\n", "devices/sda/sda1/dev": "8:1\n", "devices/sda/sda1/partition": "1\n",
	} {
		if err := os.MkdirAll(filepath.Join(sys, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(sys, path), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(sys, "dev/block"), 0o755); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"8:0": "../../devices/sda", "8:1": "../../devices/sda/sda1"} {
		if err := os.Symlink(to, filepath.Join(sys, "dev/block", link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, dev := range []string{"8:0", "8:1"} {
		if got, err := wholeDisk(sys, dev); got != "8:0" || err != nil {
			t.Errorf("%s: %q, %v", dev, got, err)
		}
	}
	if got, err := wholeDisk(sys, "9:9"); err == nil {
		t.Errorf("a disk that is not there: %q", got)
	}
	if _, err := diskOf("/proc/self"); err == nil {
		t.Error("procfs has a disk")
	}
}

// What a sandbox reads from and writes to a volume keeps to the rates.
func TestDiskRates(t *testing.T) {
	p := testProvider(t)
	host := p.groups()
	if host.mechanism(limitIO) == "" {
		_, err := p.Create(t.Context(), providers.CreateRequest{Resources: providers.Resources{DiskRead: 1 << 20}})
		if !errors.Is(err, errdefs.ErrNotSupported) {
			t.Errorf("rates that nobody enforces: %v", err)
		}
		t.Skip("no control group: ", host.why[limitIO])
	}
	// Two seconds for each of them.
	const rate, amount = 8 << 20, 16 << 20
	volumes := []providers.Volume{{Name: "rates", Path: "/data"}}
	sb := create(t, p, providers.CreateRequest{Volumes: volumes, Resources: providers.Resources{DiskRead: rate, DiskWrite: rate}})
	free := create(t, p, providers.CreateRequest{Volumes: volumes})
	mib := strconv.Itoa(amount >> 20)
	for _, c := range []struct{ name, script string }{
		{"write", "dd if=/dev/zero of=/data/big bs=1M count=" + mib + " oflag=direct"},
		{"read", "dd if=/data/big of=/dev/null bs=1M iflag=direct"},
	} {
		took := map[*providers.Sandbox]time.Duration{}
		for range 5 { // others use the disk, too
			for _, s := range []*providers.Sandbox{free, sb} {
				start := time.Now()
				out, end := sh(t, s, c.script+" 2>&1")
				if !end.Exited || strings.Contains(out, "Invalid argument") {
					t.Skip("no direct access to files here: ", out)
				}
				took[s] = time.Since(start)
			}
			if took[free] <= took[sb] {
				break
			}
		}
		t.Logf("%s: %v, without a limit %v", c.name, took[sb], took[free])
		if took[sb] < time.Second {
			t.Errorf("%s: %d MiB took %v", c.name, amount>>20, took[sb])
		}
		if took[free] > took[sb] {
			t.Errorf("%s: a sandbox without a limit took %v", c.name, took[free])
		}
	}
	r, err := p.Report(t.Context(), sb.ID)
	if err != nil || r.Limits["io"] != host.mechanism(limitIO) {
		t.Errorf("report: %+v, %v", r, err)
	}
	if host.mechanism(limitIO) == byCgroup1 {
		_, err := p.Create(t.Context(), providers.CreateRequest{Resources: providers.Resources{DiskWrite: rate}, Require: []string{"io"}})
		if !errors.Is(err, errdefs.ErrRequire) {
			t.Errorf("rates of cached writes required: %v", err)
		}
	}
	if r, err := p.Report(t.Context(), free.ID); err != nil || r.Limits["io"] != unlimited {
		t.Errorf("report: %+v, %v", r, err)
	}
}

func TestDiskRateRange(t *testing.T) {
	for _, r := range []providers.Resources{{DiskRead: -1}, {DiskWrite: 1}} {
		if _, err := chooseLimits(r, 1<<32); !errors.Is(err, errdefs.ErrOption) {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if got := rateLine("8:0", 0, 5); got != "8:0 rbps=max wbps=5" {
		t.Error(got)
	}
	if deviceText(unix.Mkdev(254, 3)) != "254:3" {
		t.Error("device number")
	}
}
