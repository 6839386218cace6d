//go:build linux

package systemd

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startBus runs a message bus for one test.
func startBus(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("dbus-daemon"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	dir, err := os.MkdirTemp("", "bus") // the address has a limit of 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	conf := filepath.Join(dir, "conf")
	if err := os.WriteFile(conf, []byte(`<busconfig><type>session</type><listen>unix:path=`+dir+`/bus</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("dbus-daemon", "--config-file="+conf, "--nofork", "--print-address")
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// fakeManager is systemd as far as scopes go.
type fakeManager struct {
	conn *dbus.Conn

	mu     sync.Mutex // guards what follows
	result string     // of jobs; empty: they never end
	refuse *dbus.Error

	unit       string
	properties map[string]dbus.Variant
}

func (*fakeManager) Subscribe() *dbus.Error { return nil }

func (m *fakeManager) StartTransientUnit(name, mode string, properties []property, _ []auxUnit) (dbus.ObjectPath, *dbus.Error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refuse != nil {
		return "", m.refuse
	}
	m.unit, m.properties = name, map[string]dbus.Variant{"mode": dbus.MakeVariant(mode)}
	for _, p := range properties {
		m.properties[p.Name] = p.Value
	}
	const job = dbus.ObjectPath("/org/freedesktop/systemd1/job/7")
	if m.result != "" {
		// Another job first: it is not ours. Both come before the answer.
		_ = m.conn.Emit(managerPath, manager+".JobRemoved", uint32(6), dbus.ObjectPath("/org/freedesktop/systemd1/job/6"), "other.scope", "failed")
		_ = m.conn.Emit(managerPath, manager+".JobRemoved", uint32(7), job, name, m.result)
	}
	return job, nil
}

// answer sets what the next jobs come to.
func (m *fakeManager) answer(result string, refuse *dbus.Error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.result, m.refuse = result, refuse
}

func (m *fakeManager) lastUnit() (string, map[string]dbus.Variant) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unit, m.properties
}

func serve(t *testing.T, address string, m *fakeManager) {
	t.Helper()
	conn, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	m.conn = conn
	if err := conn.Export(m, managerPath, manager); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.RequestName(destination, dbus.NameFlagDoNotQueue); err != nil {
		t.Fatal(err)
	}
}

func TestDelegate(t *testing.T) {
	address := startBus(t)
	m := &fakeManager{result: "done"}
	serve(t, address, m)
	moved := func() (string, error) {
		unit, _ := m.lastUnit()
		return "/user.slice/app.slice/" + unit, nil
	}
	if err := delegate(t.Context(), address, 4711, moved); err != nil {
		t.Fatal(err)
	}
	unit, properties := m.lastUnit()
	pids, _ := properties["PIDs"].Value().([]uint32)
	delegated, _ := properties["Delegate"].Value().(bool)
	if !delegated || len(pids) != 1 || pids[0] != 4711 || !strings.HasPrefix(unit, "sandbox-go-4711-") || !strings.HasSuffix(unit, ".scope") {
		t.Errorf("unit %s: %v", unit, properties)
	}

	// A scope without this process is none.
	err := delegate(t.Context(), address, 4711, func() (string, error) { return "/user.slice/session-1.scope", nil })
	if err == nil || !strings.Contains(err.Error(), "session-1.scope") {
		t.Errorf("not moved: %v", err)
	}
	m.answer("failed", nil)
	if err := delegate(t.Context(), address, 4711, moved); err == nil || !strings.Contains(err.Error(), "failed") {
		t.Errorf("a job that failed: %v", err)
	}
	m.answer("", nil)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := delegate(ctx, address, 4711, moved); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a job that does not end: %v", err)
	}
	m.answer("", dbus.NewError("org.freedesktop.DBus.Error.AccessDenied", []any{"no"}))
	if err := delegate(t.Context(), address, 4711, moved); err == nil || !strings.Contains(err.Error(), "ask systemd") {
		t.Errorf("refused: %v", err)
	}
}

func TestNoSystemd(t *testing.T) {
	if err := delegate(t.Context(), startBus(t), 1, ownGroup); err == nil || !strings.Contains(err.Error(), "systemd") {
		t.Errorf("a bus without systemd: %v", err)
	}
	if err := delegate(t.Context(), "unix:path=/nope/bus", 1, ownGroup); err == nil || !strings.Contains(err.Error(), "systemd") {
		t.Errorf("no bus: %v", err)
	}
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "")
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	if os.Geteuid() != 0 {
		if a, err := busAddress(); err == nil {
			t.Errorf("a bus that is not there: %s", a)
		}
	}
}
