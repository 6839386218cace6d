//go:build linux

package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// limitIO is the controller of disk rates, which version 1 calls blkio. It works
// on devices and is used only where rates are asked for.
const limitIO = "io"

// controllerName is what a hierarchy calls the controller of a limit.
func controllerName(version int, limit string) string {
	if version == 1 && limit == limitIO {
		return "blkio"
	}
	return limit
}

// minDiskRate is the lowest rate that can be asked for, in bytes per second: a
// page fault reads up to 128 KiB.
const minDiskRate = 64 << 10

// diskDevices are the disks, as "MAJOR:MINOR", that hold what a sandbox can read
// and write: the programs that it shows and the state directory with its volumes.
// A path that is not there yet stands for the part that is.
func diskDevices(root string) ([]string, error) {
	var out []string
	var errs []error
	for _, path := range []string{root, "/usr"} {
		d, err := diskOf(path)
		if err != nil {
			errs = append(errs, err)
		} else if !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	if len(errs) > 0 && len(out) == 0 {
		return nil, errors.Join(errs...)
	}
	if len(errs) > 0 {
		return out, fmt.Errorf("only part of the files has a disk: %w", errors.Join(errs...))
	}
	return out, nil
}

// diskOf finds the whole disk below the file system that holds path.
func diskOf(path string) (string, error) {
	var st unix.Stat_t
	for {
		err := unix.Stat(path, &st)
		if err == nil {
			break
		}
		if err != unix.ENOENT || path == "/" {
			return "", &os.PathError{Op: "stat", Path: path, Err: err}
		}
		path = filepath.Dir(path)
	}
	dev := st.Dev
	if unix.Major(dev) == 0 { // btrfs and others have numbers of their own
		source, err := mountSource(dev)
		if err != nil {
			return "", err
		}
		if err := unix.Stat(source, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
			return "", fmt.Errorf("the file system of %s lies on no disk but on %q", path, clip(source))
		}
		dev = st.Rdev
	}
	return wholeDisk("/sys", deviceText(dev))
}

func deviceText(dev uint64) string {
	return strconv.Itoa(int(unix.Major(dev))) + ":" + strconv.Itoa(int(unix.Minor(dev)))
}

// wholeDisk is the disk of a partition, or the disk itself: rates are those of
// whole disks.
func wholeDisk(sys, dev string) (string, error) {
	dir, err := filepath.EvalSymlinks(filepath.Join(sys, "dev/block", dev))
	if err != nil {
		return "", fmt.Errorf("disk %s: %w", dev, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "partition")); err != nil {
		return dev, nil
	}
	b, err := os.ReadFile(filepath.Join(filepath.Dir(dir), "dev"))
	if err != nil {
		return "", fmt.Errorf("disk of partition %s: %w", dev, err)
	}
	return strings.TrimSpace(string(b)), nil
}

// mountSource is the source of the mount with a device number.
func mountSource(dev uint64) (string, error) {
	b, err := readProc("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	want := deviceText(dev)
	for line := range strings.Lines(string(b)) {
		left, right, _ := strings.Cut(line, " - ")
		f, g := strings.Fields(left), strings.Fields(right)
		if len(f) > 2 && f[2] == want && len(g) > 1 {
			return unescapeMount(g[1]), nil
		}
	}
	return "", fmt.Errorf("device %s is not mounted here", want)
}

// rateLine is the line of io.max that limits a disk; zero: no limit.
func rateLine(disk string, read, write int64) string {
	text := func(n int64) string {
		if n == 0 {
			return "max"
		}
		return strconv.FormatInt(n, 10)
	}
	return disk + " rbps=" + text(read) + " wbps=" + text(write)
}

// limitRates limits what init and commands together read from and write to each
// disk. The disks are those of cgroupHost.
func (p cgroupPlan) limitRates(lim cgroupLimits, set func(dir, name, value string) error) error {
	for _, d := range lim.disks {
		if p.version == 2 {
			if err := set(p.base, "io.max", rateLine(d, lim.diskRead, lim.diskWrite)); err != nil {
				return err
			}
			continue
		}
		for _, r := range []struct {
			name string
			rate int64
		}{{"read", lim.diskRead}, {"write", lim.diskWrite}} {
			if r.rate == 0 {
				continue
			}
			if err := set(p.work(), "blkio.throttle."+r.name+"_bps_device", fmt.Sprintf("%s %d", d, r.rate)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l limits) rates() bool { return l.diskRead != 0 || l.diskWrite != 0 }

// checkRates refuses rates that nothing would enforce.
func checkRates(host *cgroupHost, l limits) error {
	if !l.rates() || host.mechanism(limitIO) != "" {
		return nil
	}
	return &errdefs.Error{Code: "E8004", Op: "create sandbox",
		Message: "disk rates cannot be limited here: " + host.why[limitIO], Suggestion: groupRemedy}
}
