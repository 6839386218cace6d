//go:build linux

package process

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Whichever of several dead orphans was found is collected. A kernel may name them in
// any order, and another one when it is asked again.
func TestOrphansInAnyOrder(t *testing.T) {
	var all []int
	for range 3 {
		p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p.Pid)
		for err = unix.EINTR; err == unix.EINTR; { // until it is dead
			err = unix.Waitid(unix.P_PID, p.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = p.Release()
	}
	r := &reaper{known: map[int]*proc{}}
	for i := len(all) - 1; i >= 0; i-- {
		if p := r.stranger(all[i]); p != nil {
			t.Errorf("an orphan is taken for a command: %+v", p)
		}
		if err := unix.Kill(all[i], 0); err != unix.ESRCH {
			t.Errorf("orphan %d of %d is still there: %v", i, len(all), err)
			_, _ = unix.Wait4(all[i], nil, 0, nil)
		}
	}
}
