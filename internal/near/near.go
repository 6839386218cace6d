// Package near tells how far a mistyped word is from one that is known.
package near

import "slices"

// Distance is the number of letters (bytes) to change, add or leave out to make b
// out of a: the distance of Levenshtein. It takes the time of len(a)*len(b).
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		above := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := above
			if a[i] != b[j] {
				d = 1 + min(above, row[j], row[j+1])
			}
			above, row[j+1] = row[j+1], d
		}
	}
	return row[len(b)]
}

// Best is the one of names that name was probably meant to be, the first by order of
// letters where several are; "" where none is like it.
func Best(name string, names []string) string {
	best, distance := "", min(len(name), max(2, len(name)/3)+1)
	for _, n := range slices.Sorted(slices.Values(names)) {
		if d := Distance(name, n); d < distance {
			best, distance = n, d
		}
	}
	return best
}
