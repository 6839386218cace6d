//go:build linux

package local

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// life decides, in init, when the sandbox ends: at its deadline, when it is
// told to, or when the client of an attached sandbox is gone. All decisions are
// made under one mutex, so that a request to move the end either comes before
// the end and counts, or is refused.
type life struct {
	note  *os.File         // the first line says why it ended
	exit  func(why string) // ends the sandbox at once; does not return in init
	woken bool             // it had hibernated, and does so again when nobody takes it over

	mu       sync.Mutex
	deadline int64    // CLOCK_BOOTTIME, ns
	ended    bool     // nothing is granted any more
	timer    *os.File // timerfd
	guard    *guard   // told of every deadline; may be nil
}

// newLife starts the clock. CLOCK_BOOTTIME counts the time that the machine
// sleeps, and setting the time of day does not move it.
func newLife(deadline int64, note *os.File, exit func(string)) (*life, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	l := &life{note: note, exit: exit, deadline: deadline, timer: os.NewFile(uintptr(fd), "lifetime")}
	if err := l.armLocked(); err != nil {
		l.timer.Close()
		return nil, err
	}
	return l, nil
}

// unknownEnd is the deadline of a sandbox that was not told it yet.
const unknownEnd = math.MaxInt64

// begin sets the deadline of one that was made with unknownEnd.
func (l *life) begin(deadline int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deadline = deadline
	return l.armLocked()
}

// armLocked sets the timer to the deadline.
func (l *life) armLocked() error {
	if l.guard != nil {
		if err := l.guard.expire(l.deadline); err != nil {
			return err
		}
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(l.deadline, 1))}
	return unix.TimerfdSettime(int(l.timer.Fd()), unix.TFD_TIMER_ABSTIME, &spec, nil)
}

// run waits for the deadline and ends the sandbox.
func (l *life) run() {
	var ticks [8]byte
	for {
		// Moving the deadline while the timer has fired but was not read makes
		// this wait start over; the time itself is what counts.
		if _, err := l.timer.Read(ticks[:]); err != nil {
			return
		}
		if l.expire() {
			l.exit(endExpired)
			return
		}
	}
}

// expire reports whether the deadline has passed; then nothing is granted any
// more.
func (l *life) expire() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || bootTime() < l.deadline {
		return false
	}
	l.endLocked(endExpired)
	return true
}

// sleep ends a sandbox whose files have been kept, by going to sleep. Without the
// note they would be lost: when that cannot be written the sandbox goes on.
func (l *life) sleep() error {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return errEnded
	}
	if err := l.noteSleep(); err != nil {
		l.mu.Unlock()
		return fmt.Errorf("note that it hibernates: %w", err)
	}
	l.ended = true
	l.mu.Unlock()
	l.exit(endHibernated)
	return nil
}

// noteSleep writes the note as a whole, or nothing.
func (l *life) noteSleep() error {
	st, err := l.note.Stat()
	if err != nil {
		return err
	}
	if _, err := l.note.WriteString(endHibernated + "\n"); err != nil {
		return errors.Join(err, l.note.Truncate(st.Size()))
	}
	return l.note.Sync() // what has been kept outlives the machine's restart
}

func (l *life) endLocked(why string) {
	l.ended = true
	if l.note != nil {
		_, _ = l.note.WriteString(why + "\n") // without it the end counts as a crash
		if why == endHibernated {
			_ = l.note.Sync() // what has been kept outlives the machine's restart
		}
	}
}

// finish ends the sandbox.
func (l *life) finish(why string) {
	l.mu.Lock()
	first := !l.ended
	if first {
		l.endLocked(why)
	}
	l.mu.Unlock()
	if first {
		l.exit(why)
	}
}

// end is the deadline. errEnded: it has passed.
func (l *life) end() (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return 0, errEnded
	}
	return l.deadline, nil
}

// move sets the deadline to d from now and returns it; with laterOnly it never
// comes sooner than before. errEnded: too late.
func (l *life) move(d time.Duration, laterOnly bool) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || bootTime() >= l.deadline {
		return 0, errEnded
	}
	next := bootAfter(d)
	if laterOnly && next < l.deadline {
		return l.deadline, nil
	}
	before := l.deadline
	l.deadline = next
	if err := l.armLocked(); err != nil {
		l.deadline = before
		return 0, err
	}
	return next, nil
}

// detachByte on the lifeline tells the init of a detached sandbox that its
// creation is complete and the client may go.
const detachByte = 'd'

// follow ends the sandbox when the client is gone: at end of file, unless the
// sandbox is a detached one and was released before.
func (l *life) follow(lifeline io.Reader, detached bool) {
	var b [1]byte
	for {
		n, err := lifeline.Read(b[:])
		if n == 1 && b[0] == detachByte && detached {
			return
		}
		if err != nil && detached && l.woken {
			l.finish(endHibernated)
			return
		}
		if err != nil {
			l.finish(endClient)
			return
		}
	}
}

// sameSecret compares without telling by its duration how much is equal.
func sameSecret(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}
