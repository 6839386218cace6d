package gateway

import (
	"context"
	"net/http"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const (
	// turnWait is how long a request waits for another change of the same
	// sandbox.
	turnWait = 20 * time.Second
	// changeLimit bounds a change of one sandbox; the client's going away does
	// not end it half way.
	changeLimit = 60 * time.Second
)

const minRefresh = 15 * time.Second // what a shorter refresh counts as

func (s *Server) get(w http.ResponseWriter, r *http.Request) error {
	b, err := s.boxOf(r)
	if err != nil {
		return err
	}
	if err := s.look(r.Context(), b); err != nil {
		return err
	}
	answer(w, http.StatusOK, s.asDetail(b))
	return nil
}

// look asks the provider whether the sandbox is still there. When it is not as
// the record says, somebody else paused it or let it go on, a change of ours was
// given up half way, or one began or ended since the provider answered: only
// what it says in our turn counts.
func (s *Server) look(ctx context.Context, b *box) error {
	sb, err := s.opts.Provider.Get(ctx, b.id)
	if isGone(err) {
		s.forget(b, err)
		return err
	}
	if err != nil {
		return err
	}
	if agree(sb.State, b.phase()) {
		b.seen(sb)
		return nil
	}
	if !b.tryBegin() {
		return nil
	}
	defer b.end()
	return s.lookHeld(ctx, b)
}

// lookHeld is look for those who have the turn.
func (s *Server) lookHeld(ctx context.Context, b *box) error {
	sb, err := s.opts.Provider.Get(ctx, b.id)
	if err == nil {
		err = s.settle(ctx, b, sb)
	}
	if isGone(err) {
		s.forget(b, err)
	}
	return err
}

// agree reports whether a record need not be changed for what the provider
// says. Of a sandbox that starts, or whose state is not known, it says nothing.
func agree(st providers.State, p phase) bool {
	switch st {
	case providers.StateRunning:
		return p == phaseRunning
	case providers.StatePaused:
		return p == phasePaused
	}
	return true
}

// isGone reports whether an error says that the sandbox exists no more.
func isGone(err error) bool {
	switch errdefs.CodeOf(err) {
	case "E2020", "E2021", "E2022", "E2023":
		return true
	}
	return false
}

// seen takes over what the provider says of a sandbox.
func (b *box) seen(sb *providers.Sandbox) {
	if sb.Data.Dial != nil {
		b.mu.Lock()
		b.token, b.dial = sb.Data.Token.Reveal(), sb.Data.Dial
		b.mu.Unlock()
	}
}

// forget drops a sandbox that is gone.
func (s *Server) forget(b *box, why error) {
	s.mu.Lock()
	if s.boxes[b.id] == b {
		delete(s.boxes, b.id)
	}
	s.mu.Unlock()
	b.mu.Lock()
	first := !b.gone
	b.gone = true
	if b.timer != nil {
		b.timer.Stop()
	}
	message := howEnded(why)
	if first {
		b.noteLocked("info", message)
	}
	events := b.rec.Events
	b.mu.Unlock()
	if !first {
		return
	}
	b.cutAll(errGoneNow)
	s.mu.Lock()
	s.ended.add(b, events)
	s.mu.Unlock()
	if err := s.store.remove(b.id); err != nil {
		s.log.Warn("record of a sandbox not removed", "sandbox_id", b.id, "err", err)
	}
	s.log.Info(message, "sandbox_id", b.id)
}

// howEnded says in a life-cycle record why a sandbox is gone; nil: we killed
// it.
func howEnded(why error) string {
	switch errdefs.CodeOf(why) {
	case "", "E2022":
		return "sandbox killed"
	case "E2021":
		return "sandbox reached the end of its time"
	case "E2023":
		return "sandbox ended by itself"
	}
	return "sandbox does not exist"
}

func (s *Server) kill(w http.ResponseWriter, r *http.Request) error {
	b, err := s.boxOf(r)
	if err != nil {
		return err
	}
	err = s.change(r.Context(), b, func(ctx context.Context) error {
		err := s.opts.Provider.Kill(ctx, b.id)
		if err == nil {
			s.forget(b, nil)
		}
		return err
	})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// change does something to a sandbox while nobody else does. What it began it
// finishes, also when the client goes away.
func (s *Server) change(ctx context.Context, b *box, do func(context.Context) error) error {
	wait, cancel := context.WithTimeout(ctx, turnWait)
	ok := b.begin(wait)
	cancel()
	if !ok {
		return inTransition(b)
	}
	return s.changeHeld(ctx, b, do)
}

// tryChange is change, refused while another change goes on.
func (s *Server) tryChange(ctx context.Context, b *box, do func(context.Context) error) error {
	if !b.tryBegin() {
		return inTransition(b)
	}
	return s.changeHeld(ctx, b, do)
}

func (s *Server) changeHeld(ctx context.Context, b *box, do func(context.Context) error) error {
	defer b.end()
	b.mu.Lock()
	gone := b.gone
	b.mu.Unlock()
	if gone {
		return refuse(http.StatusNotFound, "E2020", "sandbox %q does not exist", b.id)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeLimit)
	defer cancel()
	if b.phase().between() { // nobody is at it
		lctx, done := context.WithTimeout(ctx, lookLimit)
		err := s.lookHeld(lctx, b)
		done()
		if isGone(err) {
			return err
		}
		if err != nil { // do decides: killing goes on
			s.log.WarnContext(ctx, "state of a sandbox not known", "sandbox_id", b.id, "err", err)
		}
	}
	err := do(ctx)
	if isGone(err) {
		s.forget(b, err)
	}
	if b.phase().between() {
		s.retryLater(b)
	}
	return err
}

func inTransition(b *box) error {
	return refuse(http.StatusConflict, "", "sandbox %q is in transition", b.id)
}

func (s *Server) setTimeout(w http.ResponseWriter, r *http.Request) error {
	var body api.Timeout
	if err := decode(w, r, &body, required); err != nil {
		return err
	}
	if body.Timeout < 0 {
		return refuse(http.StatusBadRequest, "E2011", "timeout must not be negative")
	}
	return s.moveRoute(w, r, func(ctx context.Context, b *box) error {
		return s.moveEnd(ctx, b, seconds(body.Timeout), either)
	})
}

func (s *Server) refresh(w http.ResponseWriter, r *http.Request) error {
	var body api.Refresh
	if err := decode(w, r, &body, optional); err != nil {
		return err
	}
	d := minRefresh
	if body.Duration != nil {
		if *body.Duration < 0 || *body.Duration > 3600 {
			return refuse(http.StatusBadRequest, "E2011", "duration is out of range: 0 to 3600")
		}
		d = max(d, seconds(*body.Duration))
	}
	return s.moveRoute(w, r, func(ctx context.Context, b *box) error { return s.moveEnd(ctx, b, d, laterOnly) })
}

// seconds is a time of a client, without overflow.
func seconds(n int64) time.Duration {
	return time.Duration(min(n, int64(keepPaused/time.Second))) * time.Second
}

func (s *Server) moveRoute(w http.ResponseWriter, r *http.Request, move func(context.Context, *box) error) error {
	b, err := s.boxOf(r)
	if err != nil {
		return err
	}
	if err := s.tryChange(r.Context(), b, func(ctx context.Context) error { return move(ctx, b) }); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// direction says which way an end may move.
type direction int

const (
	either direction = iota
	laterOnly
)

// moveEnd moves the end of a running sandbox to d from now, at most to the
// maximum since its start. The caller has the turn.
func (s *Server) moveEnd(ctx context.Context, b *box, d time.Duration, dir direction) error {
	rec := b.snapshot()
	switch {
	case rec.Phase.between():
		return inTransition(b)
	case rec.Phase != phaseRunning:
		return refuse(http.StatusConflict, "E2024", "sandbox %q is paused", b.id)
	}
	now := time.Now()
	end := now.Add(d)
	if last := rec.Since.Add(s.opts.MaxLifetime); end.After(last) {
		end = last
	}
	if dir == laterOnly && !end.After(rec.End) {
		return nil
	}
	if !end.After(now) {
		return s.endNow(ctx, b)
	}
	end, err := s.endAt(ctx, b, end)
	if err != nil {
		return err
	}
	b.calm()
	return s.update(b, func(rec *record) { rec.End = end })
}

// endAt lets the provider end a running sandbox at its end, or long after when
// the gateway is to pause it then. It returns the end in force.
func (s *Server) endAt(ctx context.Context, b *box, end time.Time) (time.Time, error) {
	left := max(time.Until(end), minimumTimeout)
	autoPause := b.snapshot().AutoPause
	if autoPause {
		left += keepPaused
	}
	sb, err := s.opts.Provider.SetLifetime(ctx, b.id, left)
	if err != nil {
		return end, err
	}
	b.seen(sb)
	if !autoPause && !sb.ExpiresAt.IsZero() {
		end = sb.ExpiresAt
	}
	return end.UTC(), nil
}

// endNow does what happens at the end of a sandbox's time.
func (s *Server) endNow(ctx context.Context, b *box) error {
	if b.snapshot().AutoPause {
		return s.pauseHeld(ctx, b, "paused at the end of its time")
	}
	err := s.opts.Provider.Kill(ctx, b.id)
	if err == nil || isGone(err) {
		s.forget(b, err)
		return nil
	}
	return err
}

// update changes a record, in memory and on disk, and sets the timer anew.
func (s *Server) update(b *box, edit func(*record)) error {
	b.mu.Lock()
	edit(&b.rec)
	b.mu.Unlock()
	rec := b.snapshot()
	err := s.store.save(&rec)
	s.mu.Lock()
	s.armLocked(b)
	s.mu.Unlock()
	return err
}

func (s *Server) connectV1(w http.ResponseWriter, r *http.Request) error {
	var body api.Connect
	if err := decode(w, r, &body, required); err != nil {
		return err
	}
	if body.Timeout == nil {
		return refuse(http.StatusBadRequest, "E2011", "timeout is required")
	}
	return s.connect(w, r, body, 0)
}

func (s *Server) connectV2(w http.ResponseWriter, r *http.Request) error {
	var body api.Connect
	if err := decode(w, r, &body, optional); err != nil {
		return err
	}
	return s.connect(w, r, body, defaultTimeoutV2)
}

// connect extends a running sandbox, never shortens it, and resumes a paused
// one.
func (s *Server) connect(w http.ResponseWriter, r *http.Request, body api.Connect, d time.Duration) error {
	if body.Memory != nil && !*body.Memory {
		return refuse(http.StatusBadRequest, "E8004", "memory: false is not supported by this gateway: memory is always kept")
	}
	if body.Timeout != nil {
		var err error
		if d, err = s.timeout(*body.Timeout, 0); err != nil {
			return err
		}
	}
	b, err := s.boxOf(r)
	if err != nil {
		return err
	}
	status := http.StatusOK
	err = s.change(r.Context(), b, func(ctx context.Context) error {
		if b.phase() != phasePaused {
			if err := s.lookHeld(ctx, b); err != nil {
				return err
			}
		}
		if b.phase() == phasePaused {
			status = http.StatusCreated
			return s.resumeHeld(ctx, b, max(d, minimumTimeout))
		}
		return s.moveEnd(ctx, b, d, laterOnly)
	})
	if err != nil {
		return err
	}
	answer(w, status, s.asSandbox(b))
	return nil
}
