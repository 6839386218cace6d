package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/internal/netrule"
	"github.com/agent-sandbox/sandbox-go/providers"
)

// Default times, which the protocol fixes.
const (
	defaultTimeoutV1 = 15 * time.Second
	defaultTimeoutV2 = 300 * time.Second
)

const (
	maxMetadata    = 64 << 10 // bytes of one sandbox's metadata
	killLimit      = 30 * time.Second
	minimumTimeout = time.Second
)

func (s *Server) createV1(w http.ResponseWriter, r *http.Request) error {
	return s.create(w, r, defaultTimeoutV1)
}

func (s *Server) createV2(w http.ResponseWriter, r *http.Request) error {
	return s.create(w, r, defaultTimeoutV2)
}

func (s *Server) create(w http.ResponseWriter, r *http.Request, timeout time.Duration) error {
	var body api.NewSandbox
	if err := decode(w, r, &body, required); err != nil {
		return err
	}
	rec, req, err := s.plan(r.Context(), ownerOf(r), &body, timeout)
	if err != nil {
		return err
	}
	rec.Owner = ownerOf(r)
	if req.Places, err = placesOf(r); err != nil {
		return err
	}
	if err := identify(r.Header.Values(requestHeader), rec, req); err != nil {
		return err
	}
	done, err := s.reserve()
	if err != nil {
		return err
	}
	defer done()
	b, err := s.make(r.Context(), rec, req)
	if err != nil {
		return lostSnapshot(req.Snapshot, err)
	}
	answer(w, http.StatusCreated, s.asSandbox(b))
	return nil
}

// requestHeader may name a creation, so that repeating it after a lost answer
// makes no second sandbox. It is ours; SDKs do not send it.
const requestHeader = "Sandbox-Request-Id"

// identify gives a creation its identity: the client's, or a new one. What the
// provider does not see of the parameters it gets as a mark, and refuses a
// repetition with others.
func identify(given []string, rec *record, req *providers.CreateRequest) error {
	if len(given) == 0 {
		req.RequestID = randomHex(16)
		return nil
	}
	if len(given) > 1 || given[0] == "" || len(given[0]) > 128 {
		return refuse(http.StatusBadRequest, "E2011", "%s is given twice, empty or longer than 128 bytes", requestHeader)
	}
	rest, err := json.Marshal([]any{rec.Metadata, rec.AutoPause, rec.MaskHost, rec.Traffic != "", rec.Alias})
	if err != nil {
		return err
	}
	sum := sha256.Sum256(rest)
	req.Metadata[markRequest] = hex.EncodeToString(sum[:])
	req.RequestID = rec.Owner + "/" + given[0]
	return nil
}

// placesOf reads which paths the default user must be able to write; a slash at
// the end makes it a directory. The provider checks them.
func placesOf(r *http.Request) ([]providers.Place, error) {
	paths, err := api.SplitPlaces(strings.Join(r.Header.Values(api.PlacesHeader), ","))
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "E2011", "%s is not percent-encoded", api.PlacesHeader)
	}
	var places []providers.Place
	for _, p := range paths {
		at, dir := strings.CutSuffix(p, "/")
		places = append(places, providers.Place{Path: at, Dir: dir})
	}
	return places, nil
}

// plan checks the body of a creation and says what is to be made. Nothing has
// happened when it refuses.
func (s *Server) plan(ctx context.Context, owner string, body *api.NewSandbox, timeout time.Duration) (*record, *providers.CreateRequest, error) {
	template, snapshot, err := s.start(ctx, owner, body.TemplateID)
	if err != nil {
		return nil, nil, err
	}
	timeout = min(timeout, s.opts.MaxLifetime)
	if body.Timeout != nil {
		if timeout, err = s.timeout(*body.Timeout, minimumTimeout); err != nil {
			return nil, nil, err
		}
	}
	if err := refuseUnsupported(body); err != nil {
		return nil, nil, err
	}
	size := 0
	for k, v := range body.Metadata {
		size += len(k) + len(v)
	}
	if size > maxMetadata {
		return nil, nil, refuse(http.StatusBadRequest, "E2011", "metadata has %d bytes; at most %d", size, maxMetadata)
	}
	policy, err := s.network(body)
	if err != nil {
		return nil, nil, err
	}
	rec := &record{
		TemplateID: template.id, Alias: template.alias, Metadata: maps.Clone(body.Metadata),
		AutoPause: body.AutoPause != nil && *body.AutoPause, Internet: policy.Mode == "host", Network: body.Network,
	}
	if n := body.Network; n != nil {
		rec.MaskHost = n.MaskRequestHost
		if n.AllowPublicTraffic != nil && !*n.AllowPublicTraffic {
			rec.Traffic = randomHex(trafficBytes)
		}
	}
	req := &providers.CreateRequest{
		Template: template.provider, Snapshot: snapshot, Lifetime: timeout, Detached: true, Env: body.EnvVars,
		Metadata: map[string]string{markGateway: s.store.ident},
		Network:  policy,
	}
	rec.Since = time.Now()
	rec.End = rec.Since.Add(timeout)
	if rec.AutoPause {
		if _, ok := s.opts.Provider.(providers.Pauser); !ok {
			return nil, nil, notSupported("autoPause: pausing is")
		}
		req.Lifetime += keepPaused // the gateway pauses it at its end
	}
	return rec, req, nil
}

// refuseUnsupported names what of a creation cannot be honoured.
func refuseUnsupported(body *api.NewSandbox) error {
	var what string
	switch {
	case given(body.IAM):
		what = "iam"
	case given(body.MCP):
		what = "mcp"
	case len(body.VolumeMounts) > 0:
		what = "volumeMounts"
	case body.AutoResume != nil && body.AutoResume.Enabled:
		what = "autoResume"
	case body.AutoPauseMemory != nil && !*body.AutoPauseMemory:
		what = "autoPauseMemory: false (memory is always kept)"
	default:
		return nil
	}
	return refuse(http.StatusBadRequest, "E8004", "%s is not supported by this gateway; no sandbox was made", what)
}

// given reports whether a field holds anything but null, false or an empty object.
func given(raw json.RawMessage) bool {
	switch string(bytes.TrimSpace(raw)) {
	case "", "null", "false", "{}":
		return false
	}
	return true
}

// network picks the policy that a body asks for. It only ever takes away from
// what the gateway allows.
func (s *Server) network(body *api.NewSandbox) (*providers.NetworkPolicy, error) {
	closed := body.AllowInternetAccess != nil && !*body.AllowInternetAccess
	n := body.Network
	if n == nil {
		return s.policy(closed), nil
	}
	for _, d := range n.DenyOut {
		if d != "0.0.0.0/0" {
			return nil, refuse(http.StatusBadRequest, "E8004", "network.denyOut can only be 0.0.0.0/0 with this gateway; no sandbox was made")
		}
		closed = true
	}
	var what string
	switch {
	case n.EgressProxy != nil:
		what = "egressProxy"
	case len(n.Rules) > 0:
		what = "rules"
	case !validMask(n.MaskRequestHost):
		return nil, refuse(http.StatusBadRequest, "E2011", "network.maskRequestHost is malformed")
	case len(n.AllowOut) > 0:
		return s.allowOut(n.AllowOut, closed)
	default:
		return s.policy(closed), nil
	}
	return nil, refuse(http.StatusBadRequest, "E8004", "network.%s is not supported by this gateway; no sandbox was made", what)
}

// policy is that of a sandbox which lists nothing.
func (s *Server) policy(closed bool) *providers.NetworkPolicy {
	switch mode := s.opts.Network; {
	case mode == "none":
		return &providers.NetworkPolicy{Mode: "none"}
	case mode == "host" && !closed:
		return &providers.NetworkPolicy{Mode: "host"}
	case s.rules != nil && !closed:
		return listOf(s.rules)
	}
	return &providers.NetworkPolicy{Mode: "loopback"}
}

// allowOut is the policy of a sandbox that lists what it may reach.
func (s *Server) allowOut(items []string, closed bool) (*providers.NetworkPolicy, error) {
	cannot := func(format string, args ...any) error {
		return refuse(http.StatusBadRequest, "E8004", "network.allowOut: "+format+"; no sandbox was made", args...)
	}
	if mode := s.opts.Network; mode == "none" || mode == "loopback" {
		return nil, cannot("this gateway lets sandboxes reach nothing outside; it is started with --network list where they may")
	}
	if !closed {
		return nil, cannot("it needs denyOut 0.0.0.0/0 with this gateway, which cannot leave the rest open")
	}
	rules, err := netrule.ParseList(items)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "E2011", "network.allowOut: %v", err)
	}
	for _, r := range rules {
		switch {
		case !r.IsName():
			return nil, cannot("%s would open every port of an address, which this gateway cannot", r)
		case r.Port != 0 || r.Every:
			return nil, refuse(http.StatusBadRequest, "E2011", "network.allowOut: %s has a port", r)
		case s.rules != nil && !s.rules.Covers(r):
			return nil, cannot("%s is more than this gateway allows", r)
		}
	}
	return listOf(rules), nil
}

func listOf(rules netrule.List) *providers.NetworkPolicy {
	p := &providers.NetworkPolicy{Mode: "list"}
	for _, r := range rules {
		p.Allow = append(p.Allow, r.String())
	}
	return p
}

// maskPort stands for the port in a mask of the Host header.
const maskPort = "${PORT}"

// validMask accepts what a Host header may be.
func validMask(mask string) bool {
	host := strings.ReplaceAll(mask, maskPort, "1")
	return len(host) <= 255 && strings.Trim(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-:[]_") == ""
}

// timeout checks a number of seconds from a client.
func (s *Server) timeout(seconds int64, least time.Duration) (time.Duration, error) {
	if seconds < int64(least/time.Second) {
		return 0, refuse(http.StatusBadRequest, "E2011", "timeout must be at least %d", int64(least/time.Second))
	}
	if seconds > int64(s.opts.MaxLifetime/time.Second) {
		return 0, refuse(http.StatusBadRequest, "E2011", "Timeout cannot be greater than %s", inHours(s.opts.MaxLifetime))
	}
	return time.Duration(seconds) * time.Second, nil
}

// inHours is a time as the protocol's messages spell it, or in Go's way where
// it is not whole hours.
func inHours(d time.Duration) string {
	if d%time.Hour == 0 {
		return fmt.Sprintf("%d hours", d/time.Hour)
	}
	return d.String()
}

// reserve makes room for one more sandbox, until done.
func (s *Server) reserve() (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, refuse(http.StatusServiceUnavailable, "", "the gateway is shutting down")
	case len(s.boxes)+s.creating >= s.opts.MaxSandboxes:
		return nil, refuse(http.StatusTooManyRequests, "E2002", "this gateway keeps at most %d sandboxes at one time", s.opts.MaxSandboxes)
	}
	s.creating++
	return func() {
		s.mu.Lock()
		s.creating--
		s.mu.Unlock()
	}, nil
}

// make creates a sandbox and keeps its record. When it fails nothing is left;
// when the gateway dies in it, the mark lets its successor find what is.
func (s *Server) make(ctx context.Context, rec *record, req *providers.CreateRequest) (*box, error) {
	id := sha256.Sum256([]byte(s.store.ident + "/" + req.RequestID))
	req.RequestID = hex.EncodeToString(id[:])
	sb, err := s.opts.Provider.Create(ctx, *req)
	if err != nil {
		return nil, err
	}
	rec.fill(sb)
	b := newBox(rec)
	b.seen(sb)
	b.noteLocked("info", "sandbox created") // nobody else has it yet
	s.mu.Lock()
	if before := s.boxes[b.id]; before != nil { // a repetition
		s.mu.Unlock()
		return before, nil
	}
	s.boxes[b.id] = b
	s.armLocked(b)
	s.mu.Unlock()
	if rec.Owner == nobody {
		return b, nil
	}
	r := b.snapshot()
	if err := s.store.save(&r); err != nil {
		return nil, s.undo(ctx, b, err)
	}
	s.log.InfoContext(ctx, "sandbox created", "sandbox_id", b.id, "template", rec.TemplateID)
	return b, nil
}

// undo kills a sandbox whose creation cannot be completed.
func (s *Server) undo(ctx context.Context, b *box, why error) error {
	kctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killLimit)
	defer cancel()
	if err := s.opts.Provider.Kill(kctx, b.id); err != nil {
		s.log.WarnContext(ctx, "sandbox not killed", "sandbox_id", b.id, "err", err)
	}
	s.forget(b, nil)
	return fmt.Errorf("keep the record of the sandbox: %w", why)
}

// fill takes over what the provider says of a new sandbox.
func (r *record) fill(sb *providers.Sandbox) {
	r.ID, r.Phase = sb.ID, phaseRunning
	r.CreatedAt = sb.CreatedAt.UTC()
	if !r.AutoPause && !sb.ExpiresAt.IsZero() {
		r.End = sb.ExpiresAt
	}
	r.End = r.End.UTC()
	r.CPUs = math.Ceil(float64(sb.Resources.CPUMilli) / 1000)
	if r.CPUs == 0 {
		r.CPUs = float64(runtime.NumCPU()) // no limit: those of the machine
	}
	r.MemoryMiB, r.DiskMiB = max(sb.Resources.MemoryMiB, 128), sb.Resources.DiskMiB
}
