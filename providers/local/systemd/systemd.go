//go:build linux

package systemd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/godbus/dbus/v5"

	"github.com/agent-sandbox/sandbox-go/providers/local"
)

func init() {
	local.RegisterDelegator(func(ctx context.Context) error {
		address, err := busAddress()
		if err != nil {
			return err
		}
		return delegate(ctx, address, os.Getpid(), ownGroup)
	})
}

// The bus interface of systemd, org.freedesktop.systemd1(5).
const (
	destination = "org.freedesktop.systemd1"
	managerPath = dbus.ObjectPath("/org/freedesktop/systemd1")
	manager     = "org.freedesktop.systemd1.Manager"
)

// busAddress is where the service manager of this user listens; that of the
// system for root.
func busAddress() (string, error) {
	if os.Geteuid() == 0 {
		return socketAddress("/run/dbus/system_bus_socket")
	}
	if a := os.Getenv("DBUS_SESSION_BUS_ADDRESS"); a != "" {
		return a, nil
	}
	dir := os.Getenv("XDG_RUNTIME_DIR")
	if !filepath.IsAbs(dir) {
		dir = "/run/user/" + strconv.Itoa(os.Geteuid())
	}
	return socketAddress(filepath.Join(dir, "bus"))
}

func socketAddress(path string) (string, error) {
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("no bus of systemd: %w", err)
	}
	return "unix:path=" + dbus.EscapeBusAddressValue(path), nil
}

// property is one of a unit, in the signature (sv).
type property struct {
	Name  string
	Value dbus.Variant
}

// auxUnit is one more unit of a job, in the signature (sa(sv)); there are none.
type auxUnit struct {
	Name       string
	Properties []property
}

// delegate puts the process pid into a scope of its own whose control group is
// delegated, and returns when group says that it is there.
func delegate(ctx context.Context, address string, pid int, group func() (string, error)) (err error) {
	conn, err := dbus.Connect(address, dbus.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("connect to the bus of systemd: %w", err)
	}
	defer func() { err = errors.Join(err, closeQuietly(conn)) }()
	// Before the call: the job may be over when it is answered.
	if err := conn.AddMatchSignalContext(ctx, dbus.WithMatchInterface(manager), dbus.WithMatchMember("JobRemoved"), dbus.WithMatchObjectPath(managerPath)); err != nil {
		return fmt.Errorf("listen to systemd: %w", err)
	}
	signals := make(chan *dbus.Signal, 64)
	conn.Signal(signals)
	systemd := conn.Object(destination, managerPath)
	if err := systemd.CallWithContext(ctx, manager+".Subscribe", 0).Err; err != nil {
		return fmt.Errorf("listen to systemd: %w", err)
	}
	unit := fmt.Sprintf("sandbox-go-%d-%s.scope", pid, strings.ToLower(rand.Text()[:8]))
	var job dbus.ObjectPath
	err = systemd.CallWithContext(ctx, manager+".StartTransientUnit", 0, unit, "fail", []property{
		{"Description", dbus.MakeVariant("sandboxes of " + filepath.Base(os.Args[0]))},
		{"Delegate", dbus.MakeVariant(true)},
		{"CollectMode", dbus.MakeVariant("inactive-or-failed")},
		{"PIDs", dbus.MakeVariant([]uint32{uint32(pid)})},
	}, []auxUnit{}).Store(&job)
	if err != nil {
		return fmt.Errorf("ask systemd for a scope: %w", err)
	}
	if err := await(ctx, signals, job); err != nil {
		return err
	}
	at, err := group()
	if err == nil && !strings.HasSuffix(at, "/"+unit) {
		err = fmt.Errorf("systemd made the scope %s, but this process is in %s", unit, at)
	}
	return err
}

// await waits for the end of a job.
func await(ctx context.Context, signals <-chan *dbus.Signal, job dbus.ObjectPath) error {
	for {
		select {
		case s, ok := <-signals:
			if !ok {
				return errors.New("the bus of systemd closed the connection")
			}
			var id uint32
			var path dbus.ObjectPath
			var unit, result string
			if s.Name != manager+".JobRemoved" || dbus.Store(s.Body, &id, &path, &unit, &result) != nil || path != job {
				continue
			}
			if result != "done" {
				return fmt.Errorf("systemd did not make the scope %s: %s", unit, result)
			}
			return nil
		case <-ctx.Done():
			return fmt.Errorf("wait for systemd: %w", context.Cause(ctx))
		}
	}
}

// closeQuietly closes a connection that may be closed.
func closeQuietly(c *dbus.Conn) error {
	if err := c.Close(); err != nil && !errors.Is(err, dbus.ErrClosed) {
		return err
	}
	return nil
}

// ownGroup is the group of this process in the unified tree, cgroups(7).
func ownGroup() (string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSuffix(path, "\n"), nil
		}
	}
	return "", errors.New("this process is in no group of the unified tree")
}
