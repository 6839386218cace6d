package artifact

import (
	"debug/elf"
	"fmt"
	"io"
	"strings"
)

// Needs is what an executable asks of the system that starts it.
type Needs struct {
	Platform    string   // GOOS/GOARCH it was built for
	Interpreter string   // dynamic loader; empty for a static executable
	Libraries   []string // that the loader must find
}

var arches = map[elf.Machine]string{
	elf.EM_X86_64:    "amd64",
	elf.EM_AARCH64:   "arm64",
	elf.EM_386:       "386",
	elf.EM_ARM:       "arm",
	elf.EM_RISCV:     "riscv64",
	elf.EM_S390:      "s390x",
	elf.EM_PPC64:     "ppc64le",
	elf.EM_LOONGARCH: "loong64",
}

// maxInterpreter bounds the name of the dynamic loader, in bytes.
const maxInterpreter = 4096

// Inspect reads what the ELF executable in r needs. A file that is none is an
// error.
func Inspect(r io.ReaderAt) (Needs, error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return Needs{}, fmt.Errorf("not an executable for Linux: %w", err)
	}
	arch, ok := arches[f.Machine]
	if !ok {
		arch = strings.ToLower(strings.TrimPrefix(f.Machine.String(), "EM_"))
	}
	n := Needs{Platform: "linux/" + arch}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		if p.Filesz > maxInterpreter {
			return n, fmt.Errorf("name of the dynamic loader has %d bytes", p.Filesz)
		}
		b := make([]byte, p.Filesz)
		if _, err := p.ReadAt(b, 0); err != nil {
			return n, fmt.Errorf("read the name of the dynamic loader: %w", err)
		}
		n.Interpreter = strings.TrimRight(string(b), "\x00")
	}
	if n.Interpreter != "" {
		if n.Libraries, err = f.ImportedLibraries(); err != nil {
			return n, fmt.Errorf("read the needed libraries: %w", err)
		}
	}
	return n, nil
}

// Missing lists what n needs and exists says is not there: the loader's path,
// and names of libraries. exists is asked for the loader's path, and for every
// library in every folder of dirs.
func (n Needs) Missing(exists func(path string) bool, dirs []string) []string {
	if n.Interpreter == "" {
		return nil
	}
	var missing []string
	if !exists(n.Interpreter) {
		missing = append(missing, n.Interpreter)
	}
next:
	for _, lib := range n.Libraries {
		for _, dir := range dirs {
			if exists(dir + "/" + lib) {
				continue next
			}
		}
		missing = append(missing, lib)
	}
	return missing
}
