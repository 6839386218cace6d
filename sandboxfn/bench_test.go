package sandboxfn

import "testing"

// BenchmarkCommand is the cost of one short command in a local sandbox.
func BenchmarkCommand(b *testing.B) {
	sb := localSandbox(b)
	for b.Loop() {
		must(b, sb.Command(b.Context(), "true").Run())
	}
}

// BenchmarkFiles is the cost of one small file, written and read.
func BenchmarkFiles(b *testing.B) {
	sb := localSandbox(b)
	f := sb.FS(b.Context())
	data := make([]byte, 1000)
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			must(b, f.WriteFile("f", data, 0))
		}
	})
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			if _, err := f.ReadFile("f"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("stat", func(b *testing.B) {
		for b.Loop() {
			if _, err := f.Stat("f"); err != nil {
				b.Fatal(err)
			}
		}
	})
}
