package gen

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/agent-sandbox/sandbox-go/gen/directive"
)

// filesVar is the variable of the output that holds the content of files=.
const filesVar = "sandbox_files"

// embed checks the files of options and notes what the output must embed.
func (a *analysis) embed(o *directive.Options) {
	if o.Files == nil {
		return
	}
	for _, f := range *o.Files {
		pattern, problem := embedPattern(a.dir.path, f.Local)
		if problem != "" {
			problem = strings.ReplaceAll(problem, "DIR", a.g.report.relative(a.dir.path))
			a.faults.add(f.Pos, f.End, "G017", "option files: %s", problem)
			continue
		}
		filesVar := a.unit.filesVar()
		if at, taken := a.taken[filesVar]; taken {
			a.faults.add(f.Pos, f.End, "G030", "%s is already declared at %s; names that start with sandbox_ belong to generated code", filesVar, a.faults.at(at))
			return
		}
		if !slices.Contains(a.model.embeds, pattern) {
			a.model.embeds = append(a.model.embeds, pattern)
			slices.Sort(a.model.embeds)
		}
	}
}

// embedPattern is what go:embed has to be told to hold local, which is relative
// to dir; or why it can't. A folder is held with everything in it, so what the
// go command would pass over in silence is a problem.
func embedPattern(dir, local string) (pattern, problem string) {
	shown := show(local)
	clean := path.Clean(local)
	if path.IsAbs(local) || filepath.IsAbs(local) || clean == "." || clean == ".." || strings.HasPrefix(clean, "../") {
		return "", shown + " can't be embedded: it must lie below the folder of the source"
	}
	if strings.ContainsAny(clean, `*?[\`) {
		return "", shown + ` can't be embedded: its name must not hold * ? [ or \`
	}
	at := ""
	for part := range strings.SplitSeq(clean, "/") {
		at = path.Join(at, part)
		st, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(at)))
		switch {
		case err != nil:
			return "", shown + " not found (looked in DIR)"
		case !embeddable(part):
			return "", fmt.Sprintf("%s can't be embedded: %s is not a name that go:embed takes", shown, show(part))
		case at != clean && !st.IsDir():
			return "", fmt.Sprintf("%s can't be embedded: %s is not a folder", shown, show(at))
		case at == clean && st.Mode().IsRegular():
			return clean, ""
		case !st.IsDir():
			return "", shown + " can't be embedded: it is neither a file nor a folder"
		case isModule(filepath.Join(dir, filepath.FromSlash(at))):
			return "", fmt.Sprintf("%s can't be embedded: %s is another module", shown, show(at))
		}
	}
	files := 0
	err := filepath.WalkDir(filepath.Join(dir, filepath.FromSlash(clean)), func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		switch {
		case rel == clean:
		case !embeddable(e.Name()):
			return fmt.Errorf("%s has a name that go:embed does not take", show(rel))
		case e.IsDir() && isModule(p):
			return fmt.Errorf("%s is another module", show(rel))
		case e.IsDir():
		case !e.Type().IsRegular():
			return fmt.Errorf("%s is neither a file nor a folder", show(rel))
		default:
			files++
		}
		return nil
	})
	switch {
	case err != nil:
		return "", fmt.Sprintf("%s can't be embedded: %v", shown, err)
	case files == 0:
		return "", shown + " can't be embedded: it holds no files"
	}
	return "all:" + clean, ""
}

func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

// embeddable reports whether go:embed takes a file of this name: those of
// version control and those that a module can't hold it passes over. See
// CheckFilePath of golang.org/x/mod/module.
func embeddable(name string) bool {
	if slices.Contains([]string{"", ".bzr", ".hg", ".git", ".svn"}, name) || strings.HasSuffix(name, ".") {
		return false
	}
	for _, r := range name {
		if !unicode.IsLetter(r) && !(r >= '0' && r <= '9') && !strings.ContainsRune("!#$%&()+,-.=@[]^_{}~ ", r) {
			return false
		}
	}
	device, _, _ := strings.Cut(name, ".")
	device = strings.ToLower(device)
	if len(device) == 4 && (strings.HasPrefix(device, "com") || strings.HasPrefix(device, "lpt")) {
		return device[3] < '1' || device[3] > '9'
	}
	return !slices.Contains([]string{"con", "prn", "aux", "nul"}, device)
}
