package acceptance

import (
	"testing"

	"github.com/agent-sandbox/sandbox-go/gen/gentest"
	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
)

// TestEmbeddedFiles: what files= names is in the sandbox, hidden files too.
func TestEmbeddedFiles(t *testing.T) {
	sbtest.NeedSandbox(t)
	for path, want := range map[string]string{"words": "one\ntwo\n", "tree/words.txt": "one\ntwo\n", "tree/sub/.hidden": "x\n"} {
		if got, err := gentest.Mounted(t.Context(), path); got != want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", path, got, err, want)
		}
	}
	if _, err := gentest.Mounted(t.Context(), "missing"); err == nil {
		t.Error("a file that was not named is there")
	}
}
