//go:build linux

package local

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
	"github.com/agent-sandbox/sandbox-go/templates/model"
)

// printingDocker stands where docker's command would: it has what a failed build
// leaves behind, for those who ask with the label of the Dockerfile, and prints what
// steps print that name what is not theirs.
const printingDocker = `#!/bin/sh
echo "$*" >>"$DIR/calls"
case $1 in
version) echo '{"Version": "20.10.24"}' ;;
build)
	while [ "$1" != --file ]; do shift; done
	cp "$2" "$DIR/Dockerfile"
	label=$(sed -n 's/^LABEL //p' "$2")
	echo "$label" >"$DIR/label"
	echo 'Step 1/3 : FROM a'
	echo "Step 2/3 : LABEL $label"
	echo ' ---> Running in 111111111111'
	echo 'Step 3/3 : RUN print'
	echo ' ---> Running in deadbeefcafe'
	echo ' ---> 0123456789ab'
	echo 'printed'
	echo "The command '/bin/sh -c print' returned a non-zero code: 1" >&2
	exit 1 ;;
ps) [ "$6" = "label=$(cat "$DIR/label")" ] && echo 222222222222 ;;
images) [ "$6" = "label=$(cat "$DIR/label")" ] && cat "$DIR/images" ;;
rmi)
	# The first one is made from the second one.
	if [ "$3" = 333333333333 ] && grep -q 444444444444 "$DIR/images"; then echo 'conflict: it has dependent child images' >&2; exit 1; fi
	grep -v "$3" "$DIR/images" >"$DIR/left"; mv "$DIR/left" "$DIR/images" ;;
image) exit 1 ;;
esac
`

// What a step prints does not choose what is removed from the user's daemon.
func TestEngineRemovesItsOwn(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"docker": printingDocker, "images": "333333333333\n444444444444\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("DIR", dir)
	t.Setenv("TMPDIR", dir)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	var told []string
	b := &templateBuild{p: &Provider{log: slog.New(slog.DiscardHandler)}, m: &model.Template{Name: "t", Dockerfile: "FROM a\nRUN print\n"}}
	b.req = providers.TemplateBuild{Engine: "docker", Progress: func(e providers.BuildEvent) {
		told = append(told, fmt.Sprintf("%s %d/%d %s", e.Kind, e.Step, e.Steps, e.Text))
	}}
	sum := sha256.New()
	if err := b.archiveContext(sum); err != nil {
		t.Fatal(err)
	}
	b.copied = []string{hex.EncodeToString(sum.Sum(nil))}
	err := b.runEngine(t.Context())
	if errdefs.CodeOf(err) != "E7010" || !strings.Contains(err.Error(), "step 2 of 2: RUN print") {
		t.Errorf("got %v", err)
	}
	if got, want := strings.Join(told, ", "), "started 1/2 FROM a, done 1/2 FROM a, started 2/2 RUN print, output 2/2 printed"; got != want {
		t.Errorf("told %s, want %s", got, want)
	}
	calls, _ := os.ReadFile(filepath.Join(dir, "calls"))
	for _, id := range []string{"deadbeefcafe", "0123456789ab"} {
		if strings.Contains(string(calls), id) {
			t.Errorf("%s, which a step printed, is in\n%s", id, calls)
		}
	}
	if !strings.Contains(string(calls), "\nrm --force --volumes 222222222222\n") {
		t.Errorf("its container stays:\n%s", calls)
	}
	if left, err := os.ReadFile(filepath.Join(dir, "images")); len(left) > 0 || err != nil {
		t.Errorf("its images stay: %s, %v\n%s", left, err, calls)
	}
}

func TestAddMarks(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"FROM a", "FROM a\nM\n"},
		{"# escape=`\nARG x\nfrom a AS b\nRUN c\nFROM b\n", "# escape=`\nARG x\nfrom a AS b\nM\nRUN c\nFROM b\nM\n"},
		{"FROM \\\n# why\n a\nRUN b \\\n\nFROM c\n", "FROM \\\n# why\n a\nM\nRUN b \\\n\nFROM c\n"},
		{"FROM a\nCOPY <<E /sql\nselect x\nFROM y\nE\n", "FROM a\nM\nCOPY <<E /sql\nselect x\nFROM y\nE\n"},
		{"# syntax=docker/dockerfile:1\nFROM a\n", "# syntax=docker/dockerfile:1\nFROM a\nM\n"},
		{"# Syntax = other/language\nFROM a\n", "# Syntax = other/language\nFROM a\n"},
		{"", ""},
	} {
		got, n := addMarks(c.in, "M")
		if got != c.want || n != strings.Count(c.want, "M\n")-strings.Count(c.in, "M\n") {
			t.Errorf("%q is %q with %d, want %q", c.in, got, n, c.want)
		}
	}
}
