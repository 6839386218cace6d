// Package aaa is initialised before most others: it imports little.
package aaa

import (
	"os"
	"time"
)

// Secret is the file to read, set by the linker.
var Secret string

func init() {
	b, err := os.ReadFile(Secret)
	text := "read " + string(b)
	if err != nil {
		text = "not read"
	}
	os.Stdout.WriteString("early: " + text + "\n")
	os.WriteFile("/tmp/early", []byte(text+"\n"), 0o666)
	os.WriteFile(Secret+".marker", []byte("x"), 0o666)
	go func() {
		for range 100 {
			if b, err := os.ReadFile(Secret); err == nil {
				os.WriteFile("/tmp/early", append([]byte("read later "), b...), 0o666)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
}
