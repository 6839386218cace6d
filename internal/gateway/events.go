package gateway

import "time"

// maxEvents bounds the life-cycle records kept of one sandbox.
const maxEvents = 100

// event is one life-cycle record. Its message is the gateway's own text.
type event struct {
	At      time.Time `json:"at"`
	Level   string    `json:"level"` // "info" or "warn"
	Message string    `json:"message"`
}

// noteLocked adds a record; the oldest give way.
func (b *box) noteLocked(level, message string) {
	if n := len(b.rec.Events) - maxEvents + 1; n > 0 {
		b.rec.Events = append(b.rec.Events[:0:0], b.rec.Events[n:]...)
	}
	b.rec.Events = append(b.rec.Events, event{At: time.Now().UTC().Truncate(time.Millisecond), Level: level, Message: message})
}
