package e2b

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// Name is the name under which the provider of E2B's cloud is registered.
const Name = "e2b"

// Profile is what tells one service from another.
type Profile struct {
	Name    string
	APIURL  string // where the settings name none
	Domain  string // of the data plane, where the settings name none
	Place   string // where keys and templates belong, for messages: "region cn-shanghai"; may be empty
	KeyHint string // what else to do about a missing key; may be empty

	Version  api.Version // of the routes for create and connect
	Secure   bool        // create asks for a secured sandbox; v2 always makes one
	Template string      // default

	// SharedHosts are domains whose sandboxes are all reached at
	// https://sandbox.DOMAIN, told apart by headers.
	SharedHosts []string
	Headers     http.Header // besides those, for every request to the runtime

	Lifetime    time.Duration // default
	CreateFloor time.Duration
	ListLag     time.Duration

	CheckKey    bool // keys have the form of E2B's, unless the setting validate_api_key is off
	Debug       bool // the setting debug is known
	EgressLists bool // lists of what a sandbox may reach
	Metrics     bool
	Snapshots   bool

	// PauseRefusals says that pausing is not for every account, and that the
	// refusal is not told from others: all become E8004.
	PauseRefusals bool
}

// Cloud is the profile of E2B's cloud, which our gateway follows too.
func Cloud() Profile {
	return Profile{
		Name: Name, APIURL: "https://api.e2b.app", Domain: "e2b.app",
		Version: api.V2, Template: "base",
		SharedHosts: []string{"e2b.app", "e2b.dev", "e2b.pro", "e2b-staging.dev"},
		Lifetime:    5 * time.Minute, CreateFloor: time.Minute, ListLag: 2 * time.Second,
		CheckKey: true, Debug: true, EgressLists: true, Metrics: true, Snapshots: true,
	}
}

// Settings of providers.Config. region and edition are for profiles that have
// them and mean nothing here.
const (
	SettingAPIKey       = "api_key"
	SettingAPIKeySource = "api_key_source" // what to call the key's place in errors
	SettingAPIURL       = "api_url"
	SettingDomain       = "domain"
	SettingSandboxURL   = "sandbox_url" // one address for all sandboxes
	SettingRegion       = "region"
	SettingEdition      = "edition"
	SettingHTTP2        = "http2"
	SettingMaxRetries   = "max_retries"
	SettingHTTPTimeout  = "http_timeout"
	SettingCAFile       = "ca_file"
	SettingDebug        = "debug"
	SettingValidateKey  = "validate_api_key"
	SettingUserAgent    = "user_agent"
)

var settingNames = []string{
	SettingAPIKey, SettingAPIKeySource, SettingAPIURL, SettingDomain, SettingSandboxURL, SettingRegion, SettingEdition,
	SettingHTTP2, SettingMaxRetries, SettingHTTPTimeout, SettingCAFile, SettingDebug, SettingValidateKey, SettingUserAgent,
}

// options are the settings, read.
type options struct {
	api       api.Options
	domain    string   // may be empty with a sandboxURL
	sandbox   *url.URL // nil: by domain
	socket    string   // of sandbox; empty: none
	transport api.TransportOptions
	debug     bool
}

// settings reads what the user set. Every problem is E8007 or E1001.
type settings struct {
	profile *Profile
	in      map[string]string
	err     error
}

func (s *settings) fail(code errdefs.Code, message, hint string) {
	if s.err == nil {
		s.err = &errdefs.Error{Code: code, Op: "open provider " + s.profile.Name, Message: message, Suggestion: hint}
	}
}

func (s *settings) text(key string) string { return strings.TrimSpace(s.in[key]) }

func (s *settings) flag(key string, unset bool) bool {
	v := s.text(key)
	if v == "" {
		return unset
	}
	on, err := strconv.ParseBool(v)
	if err != nil {
		s.fail("E8007", key+" is neither true nor false", "")
	}
	return on
}

func (s *settings) read(cfg *providers.Config) (*options, error) {
	p := s.profile
	for _, k := range slices.Sorted(maps.Keys(s.in)) {
		if !slices.Contains(settingNames, k) {
			s.fail("E8007", fmt.Sprintf("unknown setting %q", k), "settings are "+strings.Join(settingNames, ", "))
		}
	}
	o := &options{
		debug: s.flag(SettingDebug, false),
		api: api.Options{
			Provider: p.Name, Place: p.Place, Version: p.Version,
			KeySource: s.text(SettingAPIKeySource), UserAgent: s.text(SettingUserAgent),
			CAFile: s.text(SettingCAFile), NoHTTP2: !s.flag(SettingHTTP2, true), Logger: cfg.Logger,
		},
	}
	if o.debug && !p.Debug {
		s.fail("E8007", "debug is a setting of provider e2b only", "")
	}
	if v := s.text(SettingMaxRetries); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 || n > 10 {
			s.fail("E8007", "max_retries is not a number from 0 to 10", "")
		}
		if o.api.Retries = n; n == 0 {
			o.api.Retries = api.NoRetries
		}
	}
	if v := s.text(SettingHTTPTimeout); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil || d == 0 {
			s.fail("E8007", "http_timeout is not a duration", "write 30s or 2m")
		}
		o.api.Timeout = d
	}
	s.key(o)
	s.addresses(o)
	o.transport = api.TransportOptions{Socket: o.socket, NoHTTP2: true, CAFile: o.api.CAFile}
	return o, s.err
}

func (s *settings) key(o *options) {
	if o.debug {
		return // there is no control plane to need one
	}
	key := s.text(SettingAPIKey)
	if key == "" {
		looked := o.api.KeySource
		if looked == "" {
			looked = "SANDBOX_API_KEY, E2B_API_KEY"
		}
		hint := "export SANDBOX_API_KEY=…"
		if s.profile.KeyHint != "" {
			hint += "; " + s.profile.KeyHint
		}
		s.fail("E1001", fmt.Sprintf("no API key for provider %q: looked at %s", s.profile.Name, looked), hint)
		return
	}
	key, err := api.CheckKey(key)
	if err != nil {
		if s.err == nil {
			s.err = s.ofKey(o, err)
		}
		return
	}
	if s.profile.CheckKey && s.flag(SettingValidateKey, true) && !api.IsE2BKey(key) {
		s.fail("E1001", keyFrom(o)+" does not have the form of E2B's, e2b_ and hexadecimal digits", "check which service the key is of; validate_api_key=false (E2B_VALIDATE_API_KEY) leaves the check out")
	}
	o.api.Key = key
}

// keyFrom names the key by its place.
func keyFrom(o *options) string {
	if o.api.KeySource == "" {
		return "the API key"
	}
	return "the API key from " + o.api.KeySource
}

// ofKey lets an error about the key say where that is from.
func (s *settings) ofKey(o *options, err error) error {
	e, ok := errors.AsType[*errdefs.Error](err)
	if !ok {
		return err
	}
	c := *e
	c.Message = strings.Replace(c.Message, "the API key", keyFrom(o), 1)
	return &c
}

// addresses finds the control plane and the data plane. Of the two, one may
// follow from the other.
func (s *settings) addresses(o *options) {
	p := s.profile
	apiURL, domain, sandbox := s.text(SettingAPIURL), s.text(SettingDomain), s.text(SettingSandboxURL)
	if o.debug && sandbox == "" {
		sandbox = debugURL
	}
	switch {
	case apiURL == "" && domain == "":
		apiURL, domain = p.APIURL, p.Domain
	case apiURL == "":
		apiURL = "https://api." + domain
	case domain == "":
		base, _, err := api.ParseAddress(apiURL)
		if err != nil {
			break // reported below
		}
		rest, named := strings.CutPrefix(base.Host, "api.")
		switch {
		case named && base.Scheme == "https":
			domain = rest
		case sandbox == "" && base.Scheme == "http": // a gateway of this machine serves both
			sandbox = apiURL
		case sandbox == "":
			s.fail("E8007", "api_url is set without domain, and is not of the form https://api.DOMAIN", "set domain or sandbox_url too")
		}
	}
	if domain != "" && !isDomain(domain) {
		s.fail("E8007", fmt.Sprintf("domain %q is not a host name", clip(domain)), "")
	}
	if _, _, err := api.ParseAddress(apiURL); err != nil && s.err == nil {
		s.err = err
	}
	if sandbox != "" {
		u, socket, err := api.ParseAddress(sandbox)
		if err != nil && s.err == nil {
			s.err = err
		}
		o.sandbox, o.socket = u, socket
	}
	o.api.URL, o.domain = apiURL, domain
}

// isDomain accepts host[:port].
func isDomain(s string) bool {
	u, err := url.Parse("https://" + s)
	return err == nil && u.Host == s && u.Hostname() != "" && !strings.HasPrefix(s, ".") && !strings.ContainsAny(s, " @[]")
}

// clip bounds foreign text in messages.
func clip(s string) string {
	if len(s) > 100 {
		return strings.ToValidUTF8(s[:100], "") + "…"
	}
	return s
}
