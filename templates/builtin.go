package templates

import (
	"embed"
	"io/fs"
)

//go:embed builtin
var builtinFiles embed.FS

// Builtin returns the names of the templates that are part of this module, sorted.
// On the local provider they show the machine's own files, and need the programs
// that they require there; elsewhere they are images.
func Builtin() []string {
	dirs, err := builtinFiles.ReadDir("builtin")
	if err != nil {
		panic(err) // embedded
	}
	out := make([]string, len(dirs))
	for i, d := range dirs {
		out[i] = d.Name()
	}
	return out
}

// builtin returns the folder of a built-in template.
func builtin(name string) (fs.FS, bool) {
	if !kebab.MatchString(name) {
		return nil, false
	}
	sub, err := fs.Sub(builtinFiles, "builtin/"+name)
	if err != nil {
		return nil, false
	}
	_, err = fs.Stat(sub, fileNames[0])
	return sub, err == nil
}

// Missing returns the programs of the list that look, given a name, does not find.
// It tells before a sandbox is made what a template lacks on a machine: with
// exec.LookPath for one that shows the machine's own files.
func Missing(requires []string, look func(string) (string, error)) []string {
	var out []string
	for _, p := range requires {
		if _, err := look(p); err != nil {
			out = append(out, p)
		}
	}
	return out
}
