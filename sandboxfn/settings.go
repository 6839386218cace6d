package sandboxfn

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// settings reads the environment and collects what is wrong with it.
type settings struct {
	lookup func(string) (string, bool)
	errs   []error
}

// get is the trimmed value of a variable; blank counts as not set.
func (s *settings) get(name string) string {
	v, _ := s.lookup(name)
	return strings.TrimSpace(v)
}

func (s *settings) text(field *string, name string) {
	if *field == "" {
		*field = s.get(name)
	}
}

// duration reads Go's form or a bare number of seconds.
func (s *settings) duration(field *time.Duration, name string) {
	v := s.get(name)
	if *field != 0 || v == "" {
		return
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		secs, err := strconv.ParseInt(v, 10, 32)
		if err != nil {
			s.fail(name, v, "not a duration; write 90s, 5m or a number of seconds")
			return
		}
		d = time.Duration(secs) * time.Second
	}
	if d <= 0 {
		s.fail(name, v, "must be positive; leave it unset for the default")
		return
	}
	*field = d
}

func (s *settings) bool(name string) bool {
	switch v := strings.ToLower(s.get(name)); v {
	case "1", "true", "yes", "on":
		return true
	case "", "0", "false", "no", "off":
		return false
	default:
		s.fail(name, v, "not a switch; write on or off")
		return false
	}
}

func (s *settings) fail(name, value, why string) {
	s.errs = append(s.errs, &Error{
		Code: "E8007", Op: "read settings",
		Message: fmt.Sprintf("%s=%q: %s", name, value, why),
	})
}

// credentials name the services whose keys choose a provider, first match first.
var credentials = []struct{ provider, variable string }{
	{"e2b", "SANDBOX_API_KEY"},
	{"e2b", "E2B_API_KEY"},
	{"opensandbox", "OPEN_SANDBOX_API_KEY"},
	{"opensandbox", "OPEN_SANDBOX_DOMAIN"},
}

// provider chooses: the explicit variable, else what credentials name, else local.
func (s *settings) provider() string {
	if v := s.get("SANDBOX_PROVIDER"); v != "" {
		return v
	}
	for _, c := range credentials {
		if s.get(c.variable) == "" {
			continue
		}
		if c.provider == "e2b" && s.isAlibaba() {
			return "fc"
		}
		return c.provider
	}
	return "local"
}

// isAlibaba reports whether a region or an address says that the key is one of
// Alibaba's, whose keys may look like E2B's.
func (s *settings) isAlibaba() bool {
	for _, name := range []string{"SANDBOX_URL", "SANDBOX_API_URL", "SANDBOX_DOMAIN", "E2B_SANDBOX_URL", "E2B_API_URL", "E2B_DOMAIN"} {
		if v := s.get(name); v != "" {
			return strings.Contains(v, "aliyuncs.com")
		}
	}
	return slices.ContainsFunc([]string{"SANDBOX_REGION", "ALIBABA_CLOUD_REGION_ID", "ALICLOUD_REGION"}, func(n string) bool { return s.get(n) != "" })
}

// credentialOf is the variable that made provider name be chosen, or "".
func credentialOf(name string, lookup func(string) (string, bool)) string {
	s := settings{lookup: lookup}
	if s.provider() != name {
		return ""
	}
	for _, c := range credentials {
		if s.get(c.variable) != "" {
			return c.variable
		}
	}
	return ""
}
