//go:build linux

package process

import (
	"os"
	"testing"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
	"github.com/agent-sandbox/sandbox-go/runtime/environment"
)

// What workers are told is not for lists, whichever way they are connected.
func TestListsHideEnvironments(t *testing.T) {
	plain := map[string]string{"A": "1"}
	secret := map[string]string{"GIVEN": "secret", "API_KEY": "secret"}
	marked := map[string]string{"A": "secret", relayedMark: ""}
	svc := &Service{opts: Options{Env: environment.New(environment.Options{Secrets: []string{"GIVEN"}})}}
	for name, c := range map[string]struct {
		l      launch
		hidden bool
	}{
		"command":              {launch{config: &pb.ProcessConfig{Cmd: "a", Envs: plain}}, false},
		"command with secrets": {launch{config: &pb.ProcessConfig{Cmd: "a", Envs: secret}}, true},
		"worker with channel":  {launch{config: &pb.ProcessConfig{Cmd: "a", Envs: plain}, channel: os.Stdin}, true},
		"worker behind relay":  {launch{config: &pb.ProcessConfig{Cmd: "a", Envs: marked}}, true},
		"nothing to hide":      {launch{config: &pb.ProcessConfig{Cmd: "a"}}, true},
	} {
		c.l.svc = svc
		if got := c.l.listed(); got.GetCmd() != "a" || (len(got.GetEnvs()) == 0) != c.hidden {
			t.Errorf("%s: %v", name, got)
		}
	}
}
