package gen

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Diff prints as a unified diff what Commit would change, paths relative to
// dir; "" when that is nothing.
func (p *Package) Diff(dir string) string {
	r := &reporter{dir: dir}
	var b strings.Builder
	for _, f := range p.Files {
		b.WriteString(unified(filepath.ToSlash(r.relative(filepath.Join(p.Dir, f.Name))), f.previous, f.Content))
	}
	for _, path := range p.Remove {
		old, err := os.ReadFile(path)
		if err == nil {
			b.WriteString(unified(filepath.ToSlash(r.relative(path)), old, nil))
		}
	}
	return b.String()
}

// around is the number of equal lines shown around a change.
const around = 3

// edit is one line of a diff: ' ', '-' or '+'.
type edit struct {
	op   byte
	text string
}

// unified returns a unified diff of two versions of a file. A nil version is a
// file that does not exist.
func unified(name string, before, after []byte) string {
	if string(before) == string(after) {
		return ""
	}
	edits := compare(lines(before), lines(after))
	var b strings.Builder
	from, to := "a/"+name, "b/"+name
	if before == nil {
		from = "/dev/null"
	}
	if after == nil {
		to = "/dev/null"
	}
	fmt.Fprintf(&b, "--- %s\n+++ %s\n", from, to)
	oldLine, newLine := 1, 1
	for i := 0; i < len(edits); {
		if edits[i].op == ' ' {
			oldLine, newLine, i = oldLine+1, newLine+1, i+1
			continue
		}
		start := max(i-around, 0)
		end := hunkEnd(edits, i)
		hunk := edits[start:end]
		oldStart, newStart := oldLine-(i-start), newLine-(i-start)
		oldCount, newCount := 0, 0
		for _, e := range hunk {
			if e.op != '+' {
				oldCount++
			}
			if e.op != '-' {
				newCount++
			}
		}
		fmt.Fprintf(&b, "@@ -%s +%s @@\n", span(oldStart, oldCount), span(newStart, newCount))
		for _, e := range hunk {
			b.WriteByte(e.op)
			b.WriteString(e.text + "\n")
		}
		oldLine, newLine, i = oldStart+oldCount, newStart+newCount, end
	}
	return b.String()
}

// hunkEnd is where the hunk that holds edits[i] ends: after as many equal
// lines as are shown, unless another change follows close.
func hunkEnd(edits []edit, i int) int {
	last := i
	for j := i; j < len(edits) && j-last <= 2*around; j++ {
		if edits[j].op != ' ' {
			last = j
		}
	}
	return min(last+1+around, len(edits))
}

// span is a position of a hunk; an empty one names the line before it.
func span(start, count int) string {
	if count == 0 {
		return fmt.Sprintf("%d,0", start-1)
	}
	return fmt.Sprintf("%d,%d", start, count)
}

func lines(src []byte) []string {
	if len(src) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(src), "\n"), "\n")
}

// compare finds a short list of edits from a to b: what is equal at both ends
// is set aside, the rest is compared line by line. Files too large for that
// are replaced as a whole, which is still a correct diff.
func compare(a, b []string) []edit {
	var head, tail []edit
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		head = append(head, edit{' ', a[0]})
		a, b = a[1:], b[1:]
	}
	n := 0
	for n < len(a) && n < len(b) && a[len(a)-1-n] == b[len(b)-1-n] {
		n++
	}
	for _, l := range a[len(a)-n:] {
		tail = append(tail, edit{' ', l})
	}
	a, b = a[:len(a)-n], b[:len(b)-n]
	const limit = 16 << 20 // cells of the table
	if len(a)*len(b) > limit {
		for _, l := range a {
			head = append(head, edit{'-', l})
		}
		for _, l := range b {
			head = append(head, edit{'+', l})
		}
		return append(head, tail...)
	}
	return append(append(head, common(a, b)...), tail...)
}

// common compares by the longest common subsequence.
func common(a, b []string) []edit {
	table := make([][]int32, len(a)+1)
	for i := range table {
		table[i] = make([]int32, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				table[i][j] = table[i+1][j+1] + 1
			} else {
				table[i][j] = max(table[i+1][j], table[i][j+1])
			}
		}
	}
	var edits []edit
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			edits = append(edits, edit{' ', a[i]})
			i, j = i+1, j+1
		case i < len(a) && (j == len(b) || table[i+1][j] >= table[i][j+1]):
			edits = append(edits, edit{'-', a[i]})
			i++
		default:
			edits = append(edits, edit{'+', b[j]})
			j++
		}
	}
	return edits
}
