package worker_test

import (
	"testing"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// Orphans of a worker that go on printing, here at every look into the pipe, do
// not hold up those who wait for its output: that ends with what was there.
func TestCaptureEnds(t *testing.T) {
	c, err := worker.NewCapture()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	defer c.CloseGiven()
	if _, err := c.Stdout.WriteString("last words"); err != nil {
		t.Fatal(err)
	}
	c.Ended()
	var got []byte
	calls := 0
	c.Take(0, func(b []byte) {
		got = append(got, b...)
		if calls++; calls < 1000 {
			if _, err := c.Stdout.WriteString("more"); err != nil {
				t.Error(err)
			}
		}
	})
	if string(got) != "last words" {
		t.Errorf("after the end came %.100q in %d pieces", got, calls)
	}
	c.Take(1, func(b []byte) { t.Errorf("nothing was printed, and got %q", b) })
}
