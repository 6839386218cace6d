package config

import "testing"

// What a program pays that has no settings at all.
func BenchmarkLoadNothing(b *testing.B) {
	b.Setenv("HOME", b.TempDir())
	b.Setenv("XDG_CONFIG_HOME", "")
	b.ReportAllocs()
	for b.Loop() {
		c, err := Load(Options{})
		if err != nil {
			b.Fatal(err)
		}
		if name, _ := c.Provider(); name != "local" {
			b.Fatal(name)
		}
	}
}
