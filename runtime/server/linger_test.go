//go:build linux

package server

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestAnswerReachesWhoIsSending: a client that is in the middle of its request when
// the answer is given, and goes on, gets the answer and not a broken connection.
func TestAnswerReachesWhoIsSending(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	conn, br := rawInput(t, r, `{"start":{"process":{"pid":999999}}}`)
	if _, err := br.Peek(1); err != nil { // it has been answered
		t.Fatal(err)
	}
	for i := range 20 {
		if _, err := fmt.Fprintf(conn, "%x\r\n%s\r\n", 4096, strings.Repeat("x", 4096)); err != nil {
			t.Fatalf("chunk %d: %v", i, err)
		}
		time.Sleep(time.Millisecond)
	}
	if got := endCode(t, br); got != "not_found" {
		t.Errorf("got %q", got)
	}
}

// TestLingerEnds: a client that sends without end is not listened to for long, and
// Shutdown does not wait for it.
func TestLingerEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	conn, br := rawInput(t, r, `{"start":{"process":{"pid":999999}}}`)
	if got := endCode(t, br); got != "not_found" {
		t.Fatalf("got %q", got)
	}
	for { // its deadline ends this, too
		if _, err := conn.Write(make([]byte, 4096)); err != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	start := time.Now()
	rawInput(t, r, `{"start":{"process":{"pid":999999}}}`)
	if err := r.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if d := time.Since(start); d > patience/2 {
		t.Errorf("took %v", d)
	}
}
