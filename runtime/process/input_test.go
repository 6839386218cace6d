//go:build linux

package process

import (
	"context"
	"io"
	"os"
	"testing"
)

// TestGivenUpInput: a write that is given up at any moment leaves the input as it is
// for those that follow.
func TestGivenUpInput(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(io.Discard, r)
		r.Close()
	}()
	in := newInput(w)
	for i := range 20_000 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		_ = in.write(ctx, []byte("x"))
		if err := in.write(t.Context(), []byte("y")); err != nil {
			t.Fatalf("after %d: %v", i, err)
		}
	}
	in.close()
	<-read
}
