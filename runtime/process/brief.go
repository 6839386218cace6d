//go:build linux

package process

import (
	"time"

	"golang.org/x/sys/unix"
)

// Most commands end within a moment. To make goroutines, and files that the
// network poller knows, for what one of them prints and for its end costs about
// as much as the command itself, and so does an answer in pieces. So the one who
// starts a command waits for it, for a moment, by himself.

const (
	// briefWait is how long: for that long a client waits at most for the start
	// event of a command that goes on and prints nothing.
	briefWait = 2 * time.Millisecond

	// briefTail is how long the end of a command is waited for that has printed
	// something. For that long its first output waits at most.
	briefTail = 200 * time.Microsecond

	// briefSpace bounds what is copied without a reader of the pipe. A ring must
	// be able to take it beside nothing else, or the one who waits for the ring
	// would wait for himself.
	briefSpace = 64 << 10
)

// endsSoon reports whether p may be waited for by the one who started it: nobody
// talks to it, and there is room for what it prints.
func (p *proc) endsSoon() bool {
	return p.term == nil && p.count == nil && p.in.f == nil && p.out.size >= briefSpace
}

// brief waits for the end of p, which was registered as unattended, and reports
// whether there was one: then p has been collected, and its output is complete or
// will be without anything else being done. Otherwise nothing has happened.
func (s *Service) brief(p *proc) (ended bool) {
	dead, first := false, 0
	err := p.handle.WithHandle(func(pidfd uintptr) { dead, first = p.awaitBriefly(int32(pidfd)) })
	if err != nil || !dead {
		return false
	}
	// What is in the pipes now is all that it has printed.
	var left [outputs]int
	for i, pipe := range p.pipes {
		if left[i] = pipe.holds(); left[i] > briefSpace {
			return false
		}
	}
	if s.reaper == nil {
		p.reap()
	} else {
		s.reaper.takeBrief(p)
	}
	for k := range p.pipes {
		i := (first + k) % len(p.pipes)
		pipe := p.pipes[i]
		if pipe.drain(left[i]) {
			s.wg.Go(func() {
				defer pipe.close()
				if pipe.open() == nil {
					pipe.discard()
				}
			})
		} else {
			pipe.close()
		}
		p.complete()
	}
	p.complete()
	return true
}

// awaitBriefly reports whether p has died, a moment later, and which of its pipes
// was the first to hold something.
func (p *proc) awaitBriefly(pidfd int32) (dead bool, first int) {
	fds := []unix.PollFd{{Fd: pidfd, Events: unix.POLLIN}}
	for _, pipe := range p.pipes {
		// A pipe that was closed is no news.
		fds = append(fds, unix.PollFd{Fd: int32(pipe.fd), Events: unix.POLLIN})
	}
	printed := false
	for until := time.Now().Add(briefWait); ; {
		left := time.Until(until)
		if left <= 0 {
			return false, first
		}
		wait := unix.NsecToTimespec(int64(left))
		n, err := unix.Ppoll(fds, &wait, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil || n == 0:
			return false, first
		case fds[0].Revents != 0:
			return true, first
		}
		for i := range fds[1:] {
			f := &fds[1+i]
			if !printed && f.Revents&unix.POLLIN != 0 {
				first = i
			}
			printed = printed || f.Revents&unix.POLLIN != 0
			if f.Revents != 0 {
				f.Fd = -1 // ppoll(2) passes over it
			}
		}
		if printed {
			fds = fds[:1]
			if t := time.Now().Add(briefTail); t.Before(until) {
				until = t
			}
		}
	}
}
