package gateway

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/mux"
)

const (
	maxEvents   = 100 // life-cycle records kept of one sandbox
	maxEnded    = 1000
	defaultLogs = 1000
	maxLogs     = 1000
)

// event is one life-cycle record. Its message is the gateway's own text.
type event struct {
	At      time.Time `json:"at"`
	Level   string    `json:"level"` // "info" or "warn"
	Message string    `json:"message"`
}

// noteLocked adds a record; the oldest give way. The mutex of b is held.
func (b *box) noteLocked(level, message string) {
	if n := len(b.rec.Events) - maxEvents + 1; n > 0 {
		b.rec.Events = append(b.rec.Events[:0:0], b.rec.Events[n:]...)
	}
	b.rec.Events = append(b.rec.Events, event{At: time.Now().UTC().Truncate(time.Millisecond), Level: level, Message: message})
}

// ended keeps the records of sandboxes that are gone, for those who ask why.
// It is not kept over a restart. The mutex of the server guards it.
type ended struct {
	records map[string]*endedBox
	order   []string // oldest first
}

type endedBox struct {
	owner  string
	events []event
}

func (e *ended) add(b *box, events []event) {
	if e.records == nil {
		e.records = map[string]*endedBox{}
	}
	if _, dup := e.records[b.id]; !dup {
		e.order = append(e.order, b.id)
	}
	e.records[b.id] = &endedBox{b.owner, events}
	for len(e.order) > maxEnded {
		delete(e.records, e.order[0])
		e.order = e.order[1:]
	}
}

// eventsOf finds the records of a sandbox of the key, living or not.
func (s *Server) eventsOf(r *http.Request) ([]event, error) {
	b, err := s.boxOf(r)
	if err == nil {
		return b.snapshot().Events, nil
	}
	id, _, _ := strings.Cut(mux.Vars(r)["id"], "-")
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.ended.records[id]; e != nil && e.owner == ownerOf(r) {
		return slices.Clone(e.events), nil
	}
	return nil, err
}

// logEntry is a record as the protocol has it.
type logEntry struct {
	Timestamp time.Time         `json:"timestamp"`
	Message   string            `json:"message"`
	Level     string            `json:"level"`
	Fields    map[string]string `json:"fields"`
}

func asEntries(events []event) []logEntry {
	out := make([]logEntry, len(events))
	for i, e := range events {
		out[i] = logEntry{e.At, e.Message, e.Level, map[string]string{"service": "gateway"}}
	}
	return out
}

// logsV1 answers the records from a time on, oldest first.
func (s *Server) logsV1(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	start, err := milliseconds(q, "start")
	if err != nil {
		return err
	}
	limit, err := logLimit(q)
	if err != nil {
		return err
	}
	events, err := s.eventsOf(r)
	if err != nil {
		return err
	}
	type line struct {
		Timestamp time.Time `json:"timestamp"`
		Line      string    `json:"line"`
	}
	out := struct {
		Logs    []line     `json:"logs"`
		Entries []logEntry `json:"logEntries"`
	}{[]line{}, []logEntry{}}
	for _, e := range asEntries(events) {
		if e.Timestamp.UnixMilli() >= start && len(out.Logs) < limit {
			out.Logs = append(out.Logs, line{e.Timestamp, e.Message})
			out.Entries = append(out.Entries, e)
		}
	}
	answer(w, http.StatusOK, out)
	return nil
}

// levels in the order of their weight.
var levels = []string{"debug", "info", "warn", "error"}

// logsV2 answers the records on one side of a time.
func (s *Server) logsV2(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	cursor, err := milliseconds(q, "cursor")
	if err != nil {
		return err
	}
	limit, err := logLimit(q)
	if err != nil {
		return err
	}
	backward := false
	switch q.Get("direction") {
	case "", "forward":
	case "backward":
		backward = true
	default:
		return refuse(http.StatusBadRequest, "E2011", "direction is not forward or backward")
	}
	least := 0
	if l := q.Get("level"); l != "" {
		if least = slices.Index(levels, l); least < 0 {
			return refuse(http.StatusBadRequest, "E2011", "level is not one of %s", strings.Join(levels, ", "))
		}
	}
	events, err := s.eventsOf(r)
	if err != nil {
		return err
	}
	entries := asEntries(events)
	if backward {
		slices.Reverse(entries)
	}
	out := struct {
		Logs []logEntry `json:"logs"`
	}{[]logEntry{}}
	for _, e := range entries {
		at := e.Timestamp.UnixMilli()
		wrongSide := cursor != 0 && (backward && at > cursor || !backward && at < cursor)
		if wrongSide || slices.Index(levels, e.Level) < least || !strings.Contains(e.Message, q.Get("search")) {
			continue
		}
		if len(out.Logs) == limit {
			break
		}
		out.Logs = append(out.Logs, e)
	}
	answer(w, http.StatusOK, out)
	return nil
}

func milliseconds(q url.Values, name string) (int64, error) {
	if q.Get(name) == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(q.Get(name), 10, 64)
	if err != nil || n < 0 {
		return 0, refuse(http.StatusBadRequest, "E2011", "%s is not a time in milliseconds", name)
	}
	return n, nil
}

func logLimit(q url.Values) (int, error) {
	if q.Get("limit") == "" {
		return defaultLogs, nil
	}
	n, err := strconv.Atoi(q.Get("limit"))
	if err != nil || n < 0 || n > maxLogs {
		return 0, refuse(http.StatusBadRequest, "E2011", "limit is out of range: 0 to %d", maxLogs)
	}
	return n, nil
}
