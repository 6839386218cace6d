package e2b

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/internal/netrule"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const opCreate = "create sandbox"

// Keys of the metadata by which a creation is found again. Callers never see
// them.
const (
	metaPrefix  = "sandbox-go."
	metaRequest = metaPrefix + "request" // CreateRequest.RequestID
	metaDigest  = metaPrefix + "digest"  // of everything else in the request
)

// Create starts a sandbox and returns once its runtime answers. A repetition
// with the same RequestID finds the sandbox that is there, which costs one
// request; with other parameters it is E2011.
//
// An answer that is lost is looked up. What cannot be used, or comes after ctx
// has ended, is killed before Create returns, within 30 s. Places are made by
// servers of ours; on others the runtime writes everywhere. The service's
// templates decide sizes, users and directories. CPU, memory and disk are what
// the sandbox must have at least, and the network "all" the internet: one with
// less is killed, and E8004. Asking for the rest is E8004 before anything is sent.
func (p *Provider) Create(ctx context.Context, req providers.CreateRequest) (*providers.Sandbox, error) {
	done, err := p.begin(ctx, opCreate)
	if err != nil {
		return nil, err
	}
	defer done()
	fresh := req.NewID || req.RequestID == ""
	if req.RequestID == "" {
		req.RequestID = rand.Text()
	}
	o, err := p.order(req)
	if err != nil {
		return nil, err
	}
	if p.opts.debug {
		return p.debugCreate(ctx, req)
	}
	if !fresh {
		switch sb, err := p.repeated(ctx, o); {
		case err != nil:
			return nil, during(opCreate, err)
		case sb != nil:
			return sb, nil
		}
	}
	sb, err := p.make(ctx, o)
	if o.snapshot && errdefs.CodeOf(err) == "E2001" {
		return nil, noSnapshot(opCreate, req.Snapshot, err)
	}
	if err != nil {
		return nil, err
	}
	return p.settle(ctx, o, sb)
}

// order is a creation that was checked.
type order struct {
	body     *api.NewSandbox
	id       string // of the request
	digest   string
	snapshot bool // the template is one
	lifetime time.Duration
	size     providers.Resources // at least
}

// order checks a request and says it in the words of the wire.
func (p *Provider) order(req providers.CreateRequest) (*order, error) {
	if err := p.checkCreate(&req); err != nil {
		return nil, err
	}
	o := &order{id: req.RequestID, lifetime: req.Lifetime, size: req.Resources}
	if o.lifetime == 0 {
		o.lifetime = p.profile.Lifetime
	}
	if req.Snapshot != "" { // a snapshot is a template
		req.Template, o.snapshot = req.Snapshot, true
	}
	if req.Template == "" {
		req.Template = p.profile.Template
	}
	secs := api.Seconds(o.lifetime)
	o.body = &api.NewSandbox{TemplateID: req.Template, Timeout: &secs, EnvVars: req.Env, Metadata: map[string]string{}}
	if p.profile.Secure && p.profile.Version == api.V1 {
		yes := true
		o.body.Secure = &yes
	}
	maps.Copy(o.body.Metadata, req.Metadata)
	if err := p.network(o.body, req.Network); err != nil {
		return nil, err
	}
	for _, pl := range req.Places {
		at := pl.Path
		if pl.Dir {
			at += "/"
		}
		o.body.Places = append(o.body.Places, at)
	}
	text, err := json.Marshal(o.body) // maps are sorted
	if err != nil {
		return nil, errdefs.Wrap("E2011", opCreate, "the request cannot be written as JSON", err)
	}
	if o.size != (providers.Resources{}) || len(o.body.Places) > 0 { // what the body does not say
		text = fmt.Appendf(text, "%+v %q", o.size, o.body.Places)
	}
	sum := sha256.Sum256(text)
	o.digest = hex.EncodeToString(sum[:16])
	o.body.Metadata[metaRequest], o.body.Metadata[metaDigest] = o.id, o.digest
	return o, nil
}

// checkCreate refuses, before any request, what the service cannot do.
func (p *Provider) checkCreate(req *providers.CreateRequest) error {
	bad := func(format string, args ...any) error {
		return errdefs.New("E2011", opCreate, fmt.Sprintf(format, args...))
	}
	if err := checkLifetime(opCreate, req.Lifetime, true); err != nil {
		return err
	}
	if len(req.RequestID) > 128 || strings.ContainsFunc(req.RequestID, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return bad("the request id is longer than 128 bytes, or holds more than visible ASCII")
	}
	texts := []string{req.Template, req.Snapshot}
	for _, m := range []map[string]string{req.Env, req.Metadata} {
		for k, v := range m {
			if k == "" {
				return bad("a name among the variables or the metadata is empty")
			}
			texts = append(texts, k, v)
		}
	}
	for k := range req.Metadata {
		if strings.HasPrefix(k, metaPrefix) {
			return bad("metadata %q: keys that start with %s are reserved", clip(k), metaPrefix)
		}
	}
	for _, s := range texts {
		if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
			return bad("%q is not UTF-8, or holds a NUL byte", clip(s))
		}
	}
	if len(req.Require) > 0 {
		return &errdefs.Error{Code: "E2012", Op: opCreate, Message: fmt.Sprintf("provider %q cannot prove %s; nothing was created", p.profile.Name, strings.Join(req.Require, ", "))}
	}
	r := req.Resources
	for _, c := range []struct {
		asked      bool
		what, hint string
	}{
		{req.Snapshot != "" && !p.profile.Snapshots, "start from snapshots", ""},
		{req.Image != "", "make sandboxes from images", "build a template from the image, and name that"},
		{r.GPU != "", "give GPUs", ""},
		{r.Processes != 0, "limit the number of processes", ""},
		{len(req.Volumes) > 0, "mount volumes", ""},
		{req.User != "", "set the default user", "name the user of each command"},
		{req.WorkDir != "", "set the default directory", "name the directory of each command"},
		{len(req.Artifacts) > 0, "show files of this machine inside", ""},
	} {
		if c.asked {
			return p.cannot(opCreate, c.what, c.hint)
		}
	}
	return nil
}

func (p *Provider) cannot(op, what, hint string) error {
	return &errdefs.Error{Code: "E8004", Op: op, Message: fmt.Sprintf("provider %q cannot %s", p.profile.Name, what), Suggestion: hint}
}

// checkLifetime refuses what no life is. Zero may stand for the default.
func checkLifetime(op string, d time.Duration, zero bool) error {
	switch {
	case d == 0 && zero, 0 < d && d <= time.Duration(1<<31-1)*time.Second:
		return nil
	case d > 0:
		return errdefs.New("E2011", op, "lifetime "+d.String()+" is longer than the service can count")
	}
	return errdefs.New("E2011", op, "lifetime "+d.String()+" is not positive")
}

// network puts a policy into the body. "loopback" is "none": what listens inside
// is always there.
func (p *Provider) network(body *api.NewSandbox, n *providers.NetworkPolicy) error {
	if n == nil {
		return nil
	}
	internet := n.Mode == "all"
	switch {
	case n.Mode == "none", n.Mode == "loopback", n.Mode == "all":
		body.AllowInternetAccess = &internet
		return nil
	case n.Mode == "host":
		return p.cannot(opCreate, "share the network of this machine", `use "all", or a list`)
	case n.Mode != "list":
		return errdefs.New("E2011", opCreate, fmt.Sprintf("no network mode %q", clip(n.Mode)))
	case !p.profile.EgressLists:
		return p.cannot(opCreate, "restrict the network to a list", `use "none" or "all"`)
	}
	rules, err := netrule.ParseList(n.Allow)
	if err != nil {
		return errdefs.New("E2011", opCreate, err.Error())
	}
	allow := make([]string, len(rules))
	for i, r := range rules {
		if allow[i], err = p.allowed(r); err != nil {
			return err
		}
	}
	body.Network = &api.Network{AllowOut: allow, DenyOut: []string{"0.0.0.0/0"}}
	return nil
}

// allowed is a rule as the service spells it, which knows no ports: a name is
// looked for in HTTP on port 80 and TLS on port 443, and an address is open on
// every port.
func (p *Provider) allowed(r netrule.Rule) (string, error) {
	switch {
	case r.IsName() && r.Port == 0 && !r.Every:
		return r.String(), nil
	case r.IsName():
		return "", p.cannot(opCreate, fmt.Sprintf("open other ports of a name than 80 and 443, as in %q", r), "leave the port out")
	case r.Every:
		host, _ := strings.CutSuffix(r.String(), ":*")
		return strings.Trim(host, "[]"), nil
	}
	every := r
	every.Port, every.Every = 0, true
	return "", p.cannot(opCreate, fmt.Sprintf("restrict addresses to a port, as in %q", r), fmt.Sprintf("to open every port write %q", every))
}

// make sends the creation. An answer that was lost is looked up.
func (p *Provider) make(ctx context.Context, o *order) (*api.Sandbox, error) {
	sb, err := p.api.Create(ctx, o.body, o.id, answerGrace)
	if err == nil && ctx.Err() == nil {
		return sb, nil
	}
	if ctx.Err() != nil {
		why := cancelled(ctx, opCreate)
		switch {
		case err == nil:
			return nil, errors.Join(why, p.remove(ctx, sb.SandboxID))
		case api.Undone(err):
			return nil, why
		}
		return nil, errors.Join(why, p.removeLost(ctx, o))
	}
	if api.Undone(err) || errdefs.CodeOf(err) == "E2011" || errdefs.CodeOf(err) == "E2001" {
		return nil, err
	}
	p.log.WarnContext(ctx, "the answer to a creation is lost, looking for the sandbox", "provider", p.profile.Name, "err", err)
	found, ferr := p.lost(ctx, o, p.profile.ListLag)
	switch {
	case ctx.Err() != nil:
		return nil, errors.Join(cancelled(ctx, opCreate), p.removeLost(ctx, o))
	case ferr != nil, found == nil:
		return nil, err // the first failure says more
	}
	sb, _, cerr := p.api.Connect(ctx, found.SandboxID, &api.Connect{Timeout: o.body.Timeout})
	if cerr != nil {
		return nil, errors.Join(err, during(opCreate, cerr), p.remove(ctx, found.SandboxID))
	}
	return sb, nil
}

// lost looks for the sandbox of a creation, for as long as lists may lag. Nil:
// there is none.
func (p *Provider) lost(ctx context.Context, o *order, lag time.Duration) (*api.ListedSandbox, error) {
	end := time.Now().Add(lag)
	for {
		page, _, err := p.api.List(ctx, &api.Query{Metadata: map[string]string{metaRequest: o.id}, States: bothStates})
		if err != nil {
			return nil, err
		}
		for i := range page {
			if page[i].Metadata[metaRequest] == o.id { // servers may not filter
				return &page[i], nil
			}
		}
		if !time.Now().Before(end) {
			return nil, nil
		}
		t := time.NewTimer(250 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, cancelled(ctx, opCreate)
		}
	}
}

// repeated answers a creation whose sandbox is there already. Nil: it is not.
func (p *Provider) repeated(ctx context.Context, o *order) (*providers.Sandbox, error) {
	found, err := p.lost(ctx, o, 0)
	if err != nil || found == nil {
		return nil, err
	}
	if found.Metadata[metaDigest] != o.digest {
		return nil, &errdefs.Error{
			Code: "E2011", Op: opCreate,
			Message:    "request id was used before, with other parameters, for sandbox " + found.SandboxID,
			Suggestion: "use a new request id for every creation that is not a repetition",
		}
	}
	return p.connect(ctx, opCreate, found.SandboxID, 0)
}

// settle turns the answer of the service into a sandbox that can be used, or
// removes it.
func (p *Provider) settle(ctx context.Context, o *order, in *api.Sandbox) (*providers.Sandbox, error) {
	now := time.Now()
	fail := func(err error) (*providers.Sandbox, error) {
		if rerr := p.remove(ctx, in.SandboxID); rerr != nil {
			return nil, errors.Join(err, rerr)
		}
		return nil, err
	}
	domain, err := p.domainOf(opCreate, in.SandboxID, in.Domain)
	if err != nil {
		return fail(err)
	}
	if olderThan(in.EnvdVersion, 0, 1, 0) {
		return fail(&errdefs.Error{
			Code: "E2004", Op: opCreate, Message: fmt.Sprintf("template %q holds envd %s, which is too old; the sandbox was removed", clip(o.body.TemplateID), clip(in.EnvdVersion)),
			Suggestion: "build the template again",
		})
	}
	f := p.known.learn(in, domain)
	sb := p.describe(in, f)
	sb.Template = templateOf(in.Alias, in.TemplateID, o.body.TemplateID)
	sb.CreatedAt, sb.ExpiresAt = now, now.Add(o.lifetime)
	sb.Metadata = visible(o.body.Metadata)
	p.known.update(sb.ID, func(f *fact) { f.expires = sb.ExpiresAt })
	u := p.ready(ctx, sb.Data, p.testOnlyReadyLimit)
	switch {
	case u == nil:
		if err := p.checkGiven(ctx, o, sb); err != nil {
			return fail(err)
		}
		return sb, nil
	case ctx.Err() != nil:
		return fail(cancelled(ctx, opCreate))
	}
	return fail(&errdefs.Error{
		Code: "E2009", Op: opCreate,
		Message: "sandbox " + sb.ID + " was created but " + u.why + "; it was removed", Suggestion: u.hint,
	})
}

// checkGiven looks whether the sandbox has at least what was asked for. The
// answer to a creation does not say it, so this costs a request where a size or
// the internet was asked for.
func (p *Provider) checkGiven(ctx context.Context, o *order, sb *providers.Sandbox) error {
	internet := o.body.AllowInternetAccess != nil && *o.body.AllowInternetAccess
	if o.size == (providers.Resources{}) && !internet {
		return nil
	}
	d, err := p.api.Get(ctx, sb.ID)
	if err != nil {
		if ctx.Err() != nil {
			return cancelled(ctx, opCreate)
		}
		return during(opCreate, err)
	}
	if internet && d.AllowInternetAccess != nil && !*d.AllowInternetAccess {
		return &errdefs.Error{
			Code: "E8004", Op: opCreate, Message: "asked for network all, the sandbox does not reach the internet; it was removed",
			Suggestion: "the service decides: leave Network empty to take what it gives",
		}
	}
	for _, c := range []struct {
		asked, have int64
		format      string
		scale       float64
	}{
		{o.size.CPUMilli, int64(math.Round(d.CPUCount * 1000)), "%v CPUs", 1000},
		{o.size.MemoryMiB, d.MemoryMB, "%v MiB of memory", 1},
		{o.size.DiskMiB, d.DiskSizeMB, "%v MiB of disk", 1},
	} {
		if c.asked > c.have {
			return &errdefs.Error{
				Code: "E8004", Op: opCreate,
				Message: fmt.Sprintf("asked for "+c.format+", the sandbox of template %q has %v; it was removed",
					number(float64(c.asked)/c.scale), clip(sb.Template), number(float64(c.have)/c.scale)),
				Suggestion: "the template decides the size: build one with the size you need, or ask for less",
			}
		}
	}
	return nil
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// describe is the sandbox of an answer to create or connect, as running.
func (p *Provider) describe(in *api.Sandbox, f fact) *providers.Sandbox {
	return &providers.Sandbox{
		ID: in.SandboxID, Provider: p.profile.Name, Template: templateOf(in.Alias, in.TemplateID, ""), State: providers.StateRunning,
		Data: p.runtime(in.SandboxID, f), RuntimeVersion: versionOf(in.EnvdVersion), DefaultUser: userOf(in.EnvdVersion),
	}
}

// remove kills a sandbox that nobody will use, also when ctx has ended.
func (p *Provider) remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupLimit)
	defer cancel()
	err := p.api.Kill(ctx, id)
	if err == nil || errors.Is(err, errdefs.ErrNotFound) {
		p.known.update(id, func(f *fact) { f.killed = true })
		return nil
	}
	p.log.WarnContext(ctx, "sandbox not removed, it lives on until its time is over", "sandbox_id", id, "err", err)
	return errdefs.Wrap("E8000", opCreate, "sandbox "+id+" could not be removed and lives on until its time is over", err)
}

// removeLost finds and kills what a creation made that nobody waits for.
func (p *Provider) removeLost(ctx context.Context, o *order) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupLimit)
	defer cancel()
	found, err := p.lost(ctx, o, p.profile.ListLag)
	switch {
	case err != nil:
		p.log.WarnContext(ctx, "what a cancelled creation made was not found", "provider", p.profile.Name, "err", err)
		return nil // the cancellation is what the caller asked for
	case found == nil:
		return nil
	}
	return p.remove(ctx, found.SandboxID)
}

// templateOf is the name of a template, as people know it.
func templateOf(alias, id, asked string) string {
	for _, s := range []string{alias, id} {
		if s != "" {
			return s
		}
	}
	return asked
}

// visible is metadata without our own.
func visible(m map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range m {
		if !strings.HasPrefix(k, metaPrefix) {
			out[k] = v
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// versionOf is a version of envd; empty when it is none.
func versionOf(s string) string {
	if _, ok := parseVersion(s); !ok {
		return ""
	}
	return s
}

// userOf is the user as whom old versions of envd must be told to act. Later
// ones know by themselves.
func userOf(version string) string {
	if olderThan(version, 0, 4, 0) {
		return "user"
	}
	return ""
}

// olderThan is false for what is no version.
func olderThan(s string, want ...int) bool {
	v, ok := parseVersion(s)
	return ok && slices.Compare(v, want) < 0
}

func parseVersion(s string) ([]int, bool) {
	core, _, _ := strings.Cut(s, "-")
	parts := strings.Split(core, ".")
	if len(parts) != 3 || len(s) > 64 {
		return nil, false
	}
	var v []int
	for _, part := range parts {
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 {
			return nil, false
		}
		v = append(v, n)
	}
	return v, true
}
