package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestCopyInEnds: a copy of standard input does not wait for more of it when its
// sandbox is gone.
func TestCopyInEnds(t *testing.T) {
	needSandbox(t)
	_, env := world(t)
	for name, first := range map[string]string{"nothing was sent": "", "a part was sent": "first line\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := sandbox(t, env, "create")
			defer sandbox(t, env, "kill", id)
			c := exec.Command("sandbox", "cp", "-", id+":f")
			c.Env = append(os.Environ(), env...)
			var errs bytes.Buffer
			c.Stderr = &errs
			input, err := c.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			defer input.Close()
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := input.Write([]byte(first)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // the copy is under way; where it is not, it fails at its start
			sandbox(t, env, "kill", id)
			late := time.AfterFunc(20*time.Second, func() { c.Process.Kill() })
			defer late.Stop()
			wantStatus(t, c.Wait(), 4)
			if !strings.HasPrefix(errs.String(), "sandbox: E202") {
				t.Errorf("got %q", errs.String())
			}
		})
	}
}
