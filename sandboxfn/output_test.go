package sandboxfn

import (
	"context"
	"testing"
)

// Records wait for a handler that is slow up to a limit; the rest is counted.
func TestSinkRecords(t *testing.T) {
	s := newSink("standard error")
	block, begun := make(chan struct{}), make(chan struct{}, 1)
	var got []int
	missed := 0
	const all, size = 20_000, 100
	for i := range all {
		s.record(size, func() {
			if i == 0 {
				begun <- struct{}{}
				<-block
			}
			got = append(got, i)
		}, func(n int) { missed += n })
		if i == 0 {
			<-begun
		}
	}
	close(block)
	s.flush(context.Background())
	if !s.idle() {
		t.Error("not idle after a flush")
	}
	s.record(size, func() { got = append(got, all) }, func(n int) { missed += n })
	s.flush(context.Background())
	s.missRecords(3, func(n int) { missed += n })
	s.close()
	missed -= 3
	if want := maxBuffered/(size+recordOverhead) + 1; len(got) != want || missed != all-want+1 {
		t.Errorf("%d records, %d missed; want %d, %d", len(got), missed, want, all-want+1)
	}
	for i := range got[:len(got)-1] {
		if got[i] != i {
			t.Fatalf("record %d at place %d", got[i], i)
		}
	}
	if got[len(got)-1] != all {
		t.Errorf("the last record is %d", got[len(got)-1])
	}
}
