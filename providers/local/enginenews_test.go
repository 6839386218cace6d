//go:build linux

package local

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// What a step prints is its output, whatever it looks like; what the engine says of
// its steps is told.
func TestEngineNewsSteps(t *testing.T) {
	for _, c := range []struct {
		name, engine, prints string
		begun                string // step/steps of each that was told
		step, steps          int    // of the one that fails
	}{
		{"plain", "podman", "STEP 1/3: FROM a\nSTEP 2/3: RUN b\nSTEP 3/3: RUN c\n", "1/3 2/3 3/3", 3, 3},
		{"without a count", "podman", "STEP 1: FROM a\nSTEP 2: RUN b\n", "1/1 2/2", 2, 2},
		{"daemon", "docker", "Step 1/2 : FROM a\n ---> 0123456789ab\nStep 2/2 : RUN b\n", "1/2 2/2", 2, 2},
		{"stages", "podman", "[1/3] STEP 1/2: FROM a\n[1/3] STEP 2/2: RUN b\n[3/3] STEP 1/3: FROM c\n[3/3] STEP 2/3: RUN d\n", "1/2 2/2 1/3 2/3", 2, 3},
		{"more than memory holds", "podman", "STEP 1/2: FROM a\nSTEP 2/2: RUN b\nSTEP 99999999999999: x\n", "1/2 2/2", 2, 2},
		{"more than numbers hold", "podman", "STEP 1/2: FROM a\nSTEP 2/2: RUN b\nSTEP 3/99999999999999999999: x\n", "1/2 2/2", 2, 2},
		{"more than there are", "podman", "STEP 1/2: FROM a\nSTEP 2/2: RUN b\nSTEP 99999: x\nSTEP 3/99999: x\nSTEP 3/3: x\nSTEP 0/2: x\nSTEP 1/9: x\n", "1/2 2/2", 2, 2},
		{"not the next", "podman", "STEP 1/3: FROM a\nSTEP 3/3: x\nSTEP 2/3: RUN b\n", "1/3 2/3", 2, 3},
		{"a stage that is none", "podman", "[1/2] STEP 1/2: FROM a\n[2/2] STEP 1/99999: x\n[3/2] STEP 1/2: x\n[2/9] STEP 1/2: x\nSTEP 2/2: x\n[1/2] STEP 2/2: RUN b\n", "1/2 2/2", 2, 2},
		{"buildkit", "docker", "#1 [internal] load\n#5 [build 1/2] FROM a\n#6 [2/2] RUN b\n#6 0.1 Step 2/2 : x\nStep 2/99999 : x\n#7 [3/99999999999999] x\n#6 ERROR: no\n", "1/2 2/2", 2, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			var begun, output []string
			n := &engineNews{engine: c.engine, b: &templateBuild{m: &model.Template{Name: "t", Dockerfile: "FROM a\nRUN b\nRUN c\n"}, req: providers.TemplateBuild{Progress: func(e providers.BuildEvent) {
				switch e.Kind {
				case providers.BuildStarted:
					begun = append(begun, fmt.Sprintf("%d/%d", e.Step, e.Steps))
				case providers.BuildOutput:
					output = append(output, e.Text)
				}
			}}}}
			fmt.Fprint(n, c.prints)
			if got := strings.Join(begun, " "); got != c.begun {
				t.Errorf("begun: %s, want %s", got, c.begun)
			}
			for line := range strings.Lines(c.prints) { // what is no step is not lost
				if line = strings.TrimSpace(line); strings.HasSuffix(line, ": x") && !strings.HasPrefix(line, "#") && !strings.Contains(strings.Join(output, "\n"), line) {
					t.Errorf("not told: %s", line)
				}
			}
			err := n.failed(errors.New("exit status 1"))
			se, ok := errors.AsType[*providers.BuildStepError](err)
			if !ok || se.Step != c.step || se.Steps != c.steps || !strings.Contains(err.Error(), fmt.Sprintf("step %d of %d", c.step, c.steps)) {
				t.Errorf("failed: %v", err)
			}
		})
	}
}
