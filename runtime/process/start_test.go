//go:build linux

package process

import (
	"os"
	"testing"

	pb "github.com/agent-sandbox/sandbox-go/internal/pb/process"
)

// What workers are told is not for lists, whichever way they are connected.
func TestListsHideEnvironments(t *testing.T) {
	secret := map[string]string{"KEY": "secret"}
	marked := map[string]string{"KEY": "secret", relayedMark: ""}
	for name, c := range map[string]struct {
		l      launch
		hidden bool
	}{
		"command":             {launch{config: &pb.ProcessConfig{Cmd: "a", Envs: secret}}, false},
		"worker with channel": {launch{config: &pb.ProcessConfig{Cmd: "a", Envs: secret}, channel: os.Stdin}, true},
		"worker behind relay": {launch{config: &pb.ProcessConfig{Cmd: "a", Envs: marked}}, true},
		"nothing to hide":     {launch{config: &pb.ProcessConfig{Cmd: "a"}}, true},
	} {
		if got := c.l.listed(); got.GetCmd() != "a" || (len(got.GetEnvs()) == 0) != c.hidden {
			t.Errorf("%s: %v", name, got)
		}
	}
}
