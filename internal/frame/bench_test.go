package frame

import (
	"fmt"
	"net"
	"testing"
)

func BenchmarkMessage(b *testing.B) {
	for _, size := range []int{100, 64 << 10, 1 << 20, 16 << 20, 128 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			x, y := net.Pipe()
			defer x.Close()
			defer y.Close()
			w, r := NewWriter(x), NewReader(y)
			r.Limit = unlimited
			m := &Message{Type: Call, ID: 1, Body: make([]byte, 50)}
			if size < 32<<10 {
				m.Body = make([]byte, size)
			} else {
				m.Segments = [][]byte{make([]byte, size)}
			}
			go func() {
				for w.Write(m) == nil {
				}
			}()
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Next(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
