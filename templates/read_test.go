package templates

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

var update = flag.Bool("update", false, "rewrite the expected parts of the files in testdata, and the reference in docs")

// TestRead reads the folder in each archive and compares the model, as JSON, or
// the problems. The comment of an archive says what it is about.
func TestRead(t *testing.T) {
	archives, err := filepath.Glob("testdata/read/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("archives: %v, %v", archives, err)
	}
	for _, name := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			ar, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			want := -1
			for i, f := range ar.Files {
				if f.Name == "want" {
					want = i
				}
			}
			if want < 0 {
				ar.Files = append(ar.Files, txtar.File{Name: "want"})
				want = len(ar.Files) - 1
			}
			dir := *ar
			dir.Files = ar.Files[:want]
			fsys, err := txtar.FS(&dir)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			tmpl, err := LoadFS(fsys, "Folder Name")
			if err == nil {
				data, err := json.MarshalIndent(tmpl, "", "  ")
				if err != nil {
					t.Fatal(err)
				}
				got = string(data)
			} else {
				got = err.Error()
				if !errors.Is(err, &errdefs.Error{Code: "E2004"}) && !errors.Is(err, errdefs.ErrTemplateNotFound) {
					t.Errorf("error has no code of templates: %#v", err)
				}
			}
			if good := strings.HasPrefix(filepath.Base(name), "good"); good != (err == nil) {
				t.Errorf("error: %v", err)
			}
			got += "\n"
			if *update {
				ar.Files[want].Data = []byte(got)
				if err := os.WriteFile(name, txtar.Format(ar), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(ar.Files[want].Data) {
				t.Errorf("got:\n%s\nwant:\n%s", got, ar.Files[want].Data)
			}
		})
	}
}

// A working folder that can be nowhere is refused where it stands.
func TestWorkdirOfTheKernel(t *testing.T) {
	for dir, bad := range map[string]bool{"/proc/x": true, "/sys/x/y": true, "/dev/x": true, "/proc": false, "/": false, "/usr/local/x": false, "/processes/x": false} {
		_, err := Parse([]byte("name: x\nworkdir: "+dir+"\n"), "template.yaml")
		if want := "template.yaml:2:10: workdir \"" + dir + "\": folders below "; (err != nil) != bad || bad && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}
