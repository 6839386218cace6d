package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
)

func TestMain(m *testing.M) { os.Exit(sbtest.Main(m)) }

func TestRun(t *testing.T) {
	sbtest.NeedSandbox(t)
	var out bytes.Buffer
	if err := run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"sorted: apple fig pear\n",
		"shell: hello from ",
		"file: hello from ",
		"input: TYPED IN\n",
		"exit code: 3\n",
		"missing file: true\n",
		"no /etc/shadow: true\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, out.String())
		}
	}
}
