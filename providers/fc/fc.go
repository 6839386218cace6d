// Package fc is the provider for Alibaba's Agent Sandbox, which is shaped like
// E2B: package e2b with another profile. It knows API keys only.
//
// What the profile says is from the vendor's documents and from what an earlier
// client observed; docs/providers.md says which.
package fc

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/api"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/providers/e2b"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const (
	// Name is the name under which the provider is registered.
	Name = "fc"
	// OtherName is that of the product, which is accepted too.
	OtherName = "express"

	// DefaultRegion is used where the settings name none.
	DefaultRegion = "cn-hangzhou"

	// EditionFlash has the newer addresses, EditionLegacy the older ones, which
	// are still served.
	EditionFlash  = "flash"
	EditionLegacy = "legacy"
)

func init() {
	providers.Register(Name, New)
	providers.Register(OtherName, New)
}

// New makes the provider from settings. It makes no request. Errors: E1001
// without a usable key, E8007 for settings that are malformed or name two
// regions.
func New(cfg providers.Config) (providers.Provider, error) {
	p, err := profile(cfg.Settings)
	if err != nil {
		return nil, err
	}
	return e2b.Open(p, cfg)
}

// domains are those of the editions, below a region.
var domains = map[string]string{
	"":            "sandbox.aliyuncs.com",
	EditionFlash:  "sandbox.aliyuncs.com",
	EditionLegacy: "e2b.fc.aliyuncs.com",
}

func profile(set map[string]string) (e2b.Profile, error) {
	bad := func(message string) error {
		return &errdefs.Error{Code: "E8007", Op: "open provider " + Name, Message: message}
	}
	region, edition := strings.TrimSpace(set[e2b.SettingRegion]), strings.TrimSpace(set[e2b.SettingEdition])
	base, ok := domains[edition]
	if !ok {
		return e2b.Profile{}, bad("edition is neither " + EditionFlash + " nor " + EditionLegacy)
	}
	if region != "" && !isRegion(region) {
		return e2b.Profile{}, bad("region is malformed; it is like " + DefaultRegion)
	}
	for _, k := range []string{e2b.SettingAPIURL, e2b.SettingDomain} {
		switch named := regionIn(set[k]); {
		case named == "":
		case region == "":
			region = named
		case region != named:
			return e2b.Profile{}, bad("conflicting settings: region is " + region + " but " + k + " is in " + named)
		}
	}
	if region == "" {
		region = DefaultRegion
	}
	domain := region + "." + base
	return e2b.Profile{
		Name: Name, APIURL: "https://api." + domain, Domain: domain, Place: "region " + region,
		KeyHint: "an access key cannot be used yet: exchanging one for an API key (provider fcnative) is not part of this program",
		// SDKs from 2.51 on, which create at /v2, do not work there.
		Version: api.V1, Secure: true, Template: "base",
		// The fourth header that the runtime wants, besides the two for routing and
		// the token: it names the user "user", without a password.
		Headers:  http.Header{"Authorization": {"Basic dXNlcjo="}},
		Lifetime: 5 * time.Minute, CreateFloor: 2 * time.Minute,
		ListLag:       5 * time.Second, // 2 s were seen
		PauseRefusals: true,
	}, nil
}

func isRegion(s string) bool {
	return len(s) <= 64 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" && strings.Trim(s, "-") == s
}

// regionIn is the region that an address or a domain of the service names; empty
// for others.
func regionIn(addr string) string {
	addr = strings.TrimSpace(addr)
	if u, err := url.Parse(addr); err == nil && u.Host != "" {
		addr = u.Host
	}
	addr = strings.TrimPrefix(addr, "api.")
	for _, base := range slices.Sorted(slices.Values([]string{domains[EditionFlash], domains[EditionLegacy]})) {
		if r, ok := strings.CutSuffix(addr, "."+base); ok && isRegion(r) {
			return r
		}
	}
	return ""
}
