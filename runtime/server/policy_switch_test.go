//go:build linux

package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"

	fspb "github.com/agent-sandbox/sandbox-go/internal/pb/filesystem"
	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/policy"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// e2bDoors are the calls of the E2B protocol and our own beside it, each with the
// endpoint that it is. A process with the number pid runs, but for Connect.
var e2bDoors = []struct {
	name, call string
	do         func(t *testing.T, r *rig, pid uint32) error
}{
	{"process.exec", "Start", func(t *testing.T, r *rig, _ uint32) error {
		_, err := r.run(t.Context(), sh("true"))
		return err
	}},
	{"terminal.open", "Start with a terminal", func(t *testing.T, r *rig, _ uint32) error {
		_, err := r.run(t.Context(), inTerminal(0, 0, "/bin/true"))
		return err
	}},
	{"process.list", "List", func(t *testing.T, r *rig, _ uint32) error {
		_, err := r.process.List(t.Context(), connect.NewRequest(&pb.ListRequest{}))
		return err
	}},
	{"process.input", "SendInput", func(t *testing.T, r *rig, pid uint32) error { return r.send(t.Context(), pid, []byte("x\n")) }},
	{"process.input", "StreamInput", func(t *testing.T, r *rig, pid uint32) error {
		in := r.process.StreamInput(t.Context())
		_ = in.Send(inputStart(pid)) // the answer says why
		_, err := in.CloseAndReceive()
		return err
	}},
	{"terminal.resize", "Update", func(t *testing.T, r *rig, pid uint32) error {
		_, err := r.process.Update(t.Context(), connect.NewRequest(&pb.UpdateRequest{Process: byPid(pid)}))
		return err
	}},
	{"process.input", "CloseStdin", func(t *testing.T, r *rig, pid uint32) error { return r.closeStdin(t.Context(), pid) }},
	{"process.signal", "SendSignal", func(t *testing.T, r *rig, pid uint32) error {
		return r.signal(t.Context(), pid, pb.Signal_SIGNAL_SIGKILL)
	}},
	{"process.connect", "Connect", func(t *testing.T, r *rig, pid uint32) error {
		_, err := r.connect(t.Context(), pid)
		return err
	}},
	{"file_ops.stat", "Stat", func(t *testing.T, r *rig, _ uint32) error {
		_, err := r.stat(t.Context(), "/")
		return err
	}},
	{"file_ops.list", "ListDir", func(t *testing.T, r *rig, _ uint32) error {
		_, err := r.ls(t.Context(), "", 1)
		return err
	}},
	{"file_ops.mkdir", "MakeDir", func(t *testing.T, r *rig, _ uint32) error {
		_, err := r.files.MakeDir(t.Context(), connect.NewRequest(&fspb.MakeDirRequest{Path: r.opts.DefaultWorkDir + "/a"}))
		return err
	}},
	{"file_ops.move", "Move", func(t *testing.T, r *rig, _ uint32) error {
		return r.move(t.Context(), r.opts.DefaultWorkDir+"/a", r.opts.DefaultWorkDir+"/b")
	}},
	{"file_ops.remove", "Remove", func(t *testing.T, r *rig, _ uint32) error { return r.remove(t.Context(), r.opts.DefaultWorkDir+"/b") }},
	{"file_ops.watch", "WatchDir", func(t *testing.T, r *rig, _ uint32) error {
		stream, err := r.files.WatchDir(t.Context(), connect.NewRequest(&fspb.WatchDirRequest{Path: r.opts.DefaultWorkDir}))
		if err != nil {
			return err
		}
		defer stream.Close()
		stream.Receive()
		return stream.Err()
	}},
	{"file_ops.watch", "CreateWatcher", func(t *testing.T, r *rig, _ uint32) error {
		_, err := r.files.CreateWatcher(t.Context(), connect.NewRequest(&fspb.CreateWatcherRequest{Path: r.opts.DefaultWorkDir}))
		return err
	}},
	{"file_ops.watch", "GetWatcherEvents", func(t *testing.T, r *rig, _ uint32) error {
		_, err := r.files.GetWatcherEvents(t.Context(), connect.NewRequest(&fspb.GetWatcherEventsRequest{WatcherId: "x"}))
		return err
	}},
	{"file_ops.watch", "RemoveWatcher", func(t *testing.T, r *rig, _ uint32) error {
		_, err := r.files.RemoveWatcher(t.Context(), connect.NewRequest(&fspb.RemoveWatcherRequest{WatcherId: "x"}))
		return err
	}},
}

// plainDoors are the requests of the E2B protocol that are no calls, and ours.
var plainDoors = []struct{ name, method, path string }{
	{"file_ops.upload", "POST", "/files?path=x"},
	{"file_ops.download", "GET", "/files?path=x"},
	{"file_ops.upload", "POST", "/files/compose"},
	{"system.metrics", "GET", "/metrics"},
	{"system.env_read", "GET", "/envs"},
	{"functions.call", "POST", "/sandbox/channels/" + testChannel},
	{"ports.connect", "POST", "/sandbox/ports/1"},
}

// isOff reports whether err is the answer of an endpoint that is off.
func isOff(err error) bool {
	return err != nil && strings.HasPrefix(coded(err).Error(), "E8022 not_found endpoint ")
}

// switchedRig is a rig with the section, and a process to be talked to that was
// started past it.
func switchedRig(t *testing.T, s *model.Server) (*rig, uint32) {
	r := newRig(t, func(o *Options) { o.Template = &model.Template{Server: s} })
	p, err := begunInside(t, r, starting{cmd: "cat"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return r, uint32(p.Pid())
}

// TestEverythingOff: core answers, and nothing else, by no protocol.
func TestEverythingOff(t *testing.T) {
	for name, s := range map[string]*model.Server{"nothing is enabled": {Enable: []string{}}, "all is disabled": {Disable: []string{"*"}}} {
		t.Run(name, func(t *testing.T) {
			r, pid := switchedRig(t, s)
			for _, d := range e2bDoors {
				if err := d.do(t, r, pid); !isOff(err) {
					t.Errorf("%s: %v", d.call, err)
				}
			}
			for _, d := range plainDoors {
				if a := r.call(t, d.method, d.path, ""); a.status != http.StatusNotFound || a.code != "E8022" {
					t.Errorf("%s %s: %d %s", d.method, d.path, a.status, a.code)
				}
			}
			core := 0
			for _, row := range Endpoints() {
				p := strings.NewReplacer("{pid:[0-9]+}", "1", "{id}", "x", "{name}", "x").Replace(row.Path)
				a := r.call(t, row.Method, p, "{}")
				if strings.HasPrefix(row.Name, "core.") {
					core++
					if a.status != http.StatusOK {
						t.Errorf("%s: %d", p, a.status)
					}
				} else if a.status != http.StatusNotFound || a.code != "E8022" {
					t.Errorf("%s %s: %d %s %s", row.Method, p, a.status, a.code, a.body)
				}
			}
			if a := r.call(t, "GET", "/health", ""); a.status != http.StatusNoContent || core == 0 {
				t.Errorf("/health: %d; %d rows of core", a.status, core)
			}
		})
	}
}

// TestOneOff switches off one endpoint after the other: it does not answer, and
// what has other names does.
func TestOneOff(t *testing.T) {
	seen := map[string]bool{}
	for _, one := range e2bDoors {
		if seen[one.name] {
			continue
		}
		seen[one.name] = true
		t.Run(one.name, func(t *testing.T) {
			r, _ := switchedRig(t, &model.Server{Disable: []string{one.name}})
			for _, d := range e2bDoors {
				p, err := begunInside(t, r, starting{cmd: "cat"})
				if err != nil {
					t.Fatal(err)
				}
				if d.call == "Connect" {
					check(t, p.Kill(t.Context())) // it is followed to its end
				}
				if err := d.do(t, r, uint32(p.Pid())); isOff(err) != (d.name == one.name) {
					t.Errorf("%s: %v", d.call, err)
				}
				check(t, p.Kill(t.Context()))
				p.Close()
			}
		})
	}
}

// TestTerminalsAreNoOtherProcesses: the switches of one are not those of the other.
func TestTerminalsAreNoOtherProcesses(t *testing.T) {
	r, plain := switchedRig(t, &model.Server{Enable: []string{"terminal"}})
	term, end := r.begin(t, inTerminal(0, 0, "/bin/cat"))
	if err := r.keys(t.Context(), term, "x\n"); err != nil {
		t.Errorf("terminal: %v", err)
	}
	for name, err := range map[string]error{
		"input": r.send(t.Context(), plain, []byte("x\n")), "signal": r.signal(t.Context(), plain, pb.Signal_SIGNAL_SIGKILL), "end": r.closeStdin(t.Context(), plain),
	} {
		if !isOff(err) {
			t.Errorf("%s of a process: %v", name, err)
		}
	}
	check(t, r.signal(t.Context(), term, pb.Signal_SIGNAL_SIGKILL))
	<-end
}

// TestTerminalsOverHTTP: what is off for terminals is not had by the paths for
// processes, nor by those that go on with a stream.
func TestTerminalsOverHTTP(t *testing.T) {
	r, plain := switchedRig(t, &model.Server{Disable: []string{"terminal.connect", "terminal.signal"}})
	term, end := r.begin(t, inTerminal(0, 0, "/bin/true"))
	<-end
	path, after := fmt.Sprintf("/process/%d", term), fmt.Sprintf("%d.2.0.0", term)
	for _, a := range []apiAnswer{
		r.call(t, "GET", path+"/stream", ""),
		r.call(t, "GET", path+"/stream", "", "Last-Event-ID", after),
		r.call(t, "POST", "/shell/stream", `{"command":"true"}`, "Last-Event-ID", after),
		r.call(t, "POST", path+"/signal", `{"signal":"KILL"}`),
	} {
		if a.status != http.StatusNotFound || a.code != "E8022" {
			t.Errorf("%d %s: %s", a.status, a.code, a.body)
		}
	}
	if a := r.call(t, "POST", fmt.Sprintf("/process/%d/signal", plain), `{"signal":"KILL"}`); a.status != http.StatusOK {
		t.Errorf("a process: %d %s", a.status, a.body)
	}
}

// TestFunctionsAreSwitched: a worker needs its connection and its start.
func TestFunctionsAreSwitched(t *testing.T) {
	for _, name := range []string{"functions", "process.exec"} {
		r, _ := switchedRig(t, &model.Server{Disable: []string{name}})
		if _, err := r.run(t.Context(), sh("true"), "Sandbox-Channel", testChannel); !isOff(err) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// TestSwitchesOfTheEnvironment: they narrow, and a name that means nothing keeps
// the server from starting.
func TestSwitchesOfTheEnvironment(t *testing.T) {
	t.Setenv(policy.EnvDisable, "process,terminal.open")
	r, _ := switchedRig(t, nil)
	if _, err := r.run(t.Context(), sh("true")); !isOff(err) {
		t.Errorf("got %v", err)
	}
	t.Setenv(policy.EnvDisable, "proces")
	if s, err := New(&Options{Token: "x"}); err == nil || !strings.Contains(err.Error(), `did you mean "process"?`) {
		t.Errorf("got %v, %v", s, err)
	}
}
