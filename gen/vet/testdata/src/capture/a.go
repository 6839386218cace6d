package capture

import (
	"io"
	"iter"
	"sync"
)

var (
	kept    func(int)
	list    []func(int)
	streams = map[string]iter.Seq[int]{}
)

type parser struct{ cb func(int) }

//sandbox:func
func keeps(cb func(int), in iter.Seq[int], w io.Writer) {
	kept = cb               // want `cb belongs to the caller and ends with the call, but is kept in kept`
	list = append(list, cb) // want `cb belongs to the caller`
	streams["x"] = in       // want `in belongs to the caller`
	go w.Write(nil)         // want `w belongs to the caller and ends with the call, but a goroutine uses it`
	go func() { cb(1) }()   // want `cb belongs to the caller and ends with the call, but a goroutine uses it`
}

//sandbox:func
func fine(cb func(int), r io.Reader) {
	p := &parser{cb: cb}
	p.cb = cb
	kept = cb
	defer func() { kept = nil }()
	var wg sync.WaitGroup
	wg.Add(1)
	go func() { defer wg.Done(); cb(1) }()
	wg.Wait()
}

//sandbox:func
func waits(cb func(int)) {
	done := make(chan struct{})
	go func() { cb(1); close(done) }()
	<-done
}

func notAnnotated(cb func(int)) {
	kept = cb
	go cb(1)
}

//sandbox:class
type model struct{ cb func(int) }

//sandbox:method
func (m *model) run(cb func(int)) {
	m.cb = cb // want `cb belongs to the caller and ends with the call, but is kept in m.cb`
}
