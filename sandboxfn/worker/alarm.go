package worker

import "time"

// timerAlarm is an alarm on a timer of the Go runtime.
type timerAlarm struct {
	t     *time.Timer
	after time.Duration
}

func newTimerAlarm(after time.Duration, f func()) *timerAlarm {
	t := time.AfterFunc(time.Hour, f)
	t.Stop()
	return &timerAlarm{t, after}
}

func (a *timerAlarm) arm()    { a.t.Reset(a.after) }
func (a *timerAlarm) disarm() { a.t.Stop() }
