// Package near tells how far a mistyped word is from one that is known.
package near

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
