package gentest

import (
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

//sandbox:func in=src,more out=dst
func convert(src, dst string, more []string) (string, error) {
	text, err := os.ReadFile(src)
	if err != nil {
		return "", err
	}
	for _, path := range more {
		b, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		text = append(text, b...)
	}
	if err := os.WriteFile(dst, []byte(strings.ToUpper(string(text))), 0o600); err != nil {
		return "", err
	}
	return filepath.Base(src) + " " + filepath.Base(dst), nil
}

// Job has paths on the caller.
type Job struct {
	Source string `sandbox:"file"`
	Folder string `sandbox:"dir"`
	Target string `sandbox:"file,out"`
}

//sandbox:func
func work(j *Job) (names []string, err error) {
	text, err := os.ReadFile(j.Source)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(j.Folder)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if err != nil {
		return names, err
	}
	return names, os.WriteFile(j.Target, append(text, "done"...), 0o644)
}

//sandbox:func
func stamp(f sandboxfn.File, mark string) (sandboxfn.File, error) {
	r, err := f.Open()
	if err != nil {
		return sandboxfn.File{}, err
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	return sandboxfn.FromBytes(f.Name(), append(text, mark...)), err
}

//sandbox:func files=testdata/words.txt:/tmp/gentest/words,testdata:/tmp/gentest/tree
func mounted(path string) (string, error) {
	b, err := os.ReadFile(filepath.Join("/tmp/gentest", path))
	return string(b), err
}
