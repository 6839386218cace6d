package redact

import (
	"fmt"
	"strings"
	"testing"
)

// What a line costs with a few secrets known, and what one more secret costs.
func BenchmarkString(b *testing.B) {
	Add("some-secret-of-the-test-1", "some-secret-of-the-test-2", "e2b_0123456789abcdef0123456789abcdef01234567")
	line := strings.Repeat("GET /sandboxes/abc: 200 in 3ms, 3 files; ", 5)
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		String(line)
	}
}

func BenchmarkAdd(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			secrets := make([]string, n)
			for i := range secrets {
				secrets[i] = fmt.Sprintf("secret-of-the-bench-%d", i)
			}
			for b.Loop() {
				newReplacer(secrets).Replace("x")
			}
		})
	}
}
