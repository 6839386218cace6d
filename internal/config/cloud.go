package config

import (
	"net/url"
	"strings"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

const defaultRegion = "cn-hangzhou"

// cloud are the settings of a service that is shaped as E2B's.
func (c *Config) cloud(provider string) (map[string]string, error) {
	e, err := c.endpoints(provider)
	if err != nil {
		return nil, err
	}
	key, err := c.apiKey(provider, e)
	if err != nil {
		return nil, err
	}
	out := map[string]string{
		"api_key": key.text, "api_key_source": key.Source,
		"api_url": e.api.text, "domain": e.domain.text, "sandbox_url": e.direct.text,
		"region": e.region.text, "edition": e.edition,
	}
	for _, k := range []string{"http2", "max_retries", "http_timeout", "ca_file"} {
		out[k] = c.Text(k)
	}
	if provider == "e2b" {
		out["validate_api_key"] = c.Text("validate_api_key")
		if c.Bool("e2b_debug") {
			out["debug"] = "true"
		}
	}
	for k, v := range out {
		if v == "" {
			delete(out, k)
		}
	}
	return out, nil
}

// endpoints are the addresses of a service.
type endpoints struct {
	api, domain, direct, region Value
	debug                       Value // set where it is on: an address, too
	edition                     string
}

// all are those that are in force.
func (e *endpoints) all() []Value { return []Value{e.api, e.domain, e.direct, e.debug} }

// endpoints takes the addresses that are set, derives those that are not, and
// refuses what can't be meant.
func (c *Config) endpoints(provider string) (endpoints, error) {
	var e endpoints
	for key, to := range map[string]*Value{"api_url": &e.api, "domain": &e.domain, "sandbox_url": &e.direct, "region": &e.region} {
		v, err := c.usableValue(key)
		if err != nil {
			return e, err
		}
		*to = v
	}
	edition, err := c.usableValue("fc.edition")
	if err != nil {
		return e, err
	}
	if provider == "e2b" {
		e.region = Value{}
		if v := c.Value("e2b_debug"); v.text == "true" {
			e.debug = v
			if e.api.text == "" {
				e.api = v
				e.api.Key, e.api.text = "api_url", "http://localhost:3000"
			}
		}
	} else {
		if err := e.placeRegion(); err != nil {
			return e, err
		}
		e.edition = e.editionOf(edition)
	}
	if err := e.derive(provider, e.debug.text != ""); err != nil {
		return e, err
	}
	return e, c.checkAddresses(provider, e)
}

// regionOf is the region that an address of Alibaba's names, or "".
func regionOf(addr string) string {
	h := hostOf(addr)
	for _, family := range []string{".sandbox.aliyuncs.com", ".e2b.fc.aliyuncs.com"} {
		if rest, ok := strings.CutSuffix(h, family); ok {
			return rest[strings.LastIndexByte(rest, '.')+1:]
		}
	}
	return ""
}

// placeRegion compares the region with those of the addresses, and takes theirs
// when it is not set.
func (e *endpoints) placeRegion() error {
	for _, v := range []Value{e.api, e.domain, e.direct} {
		r := regionOf(v.text)
		switch {
		case r == "":
		case e.region.text == "":
			e.region = Value{Key: "region", Layer: v.Layer, Source: v.Source, file: v.file, text: r, name: v.Key}
		case e.region.text != r:
			return wrong("conflicting settings: "+e.region.named()+" but "+v.Key+" is in "+r+" ("+v.Source+")", "unset one of them, or make them agree")
		}
	}
	if e.region.text == "" {
		e.region = Value{Key: "region", Layer: LayerDefault, Source: "default", text: defaultRegion}
	}
	return nil
}

// named is a value with its source: "SANDBOX_REGION=cn-beijing".
func (v Value) named() string {
	if v.Layer == LayerEnvironment {
		return v.name + "=" + v.text
	}
	return v.Key + "=" + v.text + " (" + v.Source + ")"
}

func (e *endpoints) editionOf(set Value) string {
	if set.text != "" {
		return set.text
	}
	for _, v := range []Value{e.api, e.domain, e.direct} {
		if isUnder(hostOf(v.text), "e2b.fc.aliyuncs.com") {
			return "legacy"
		}
	}
	return "flash"
}

// derive fills in the addresses that are not set. One of api_url and domain
// gives the other; what only half is said is an error, because the other half
// would be that of another service.
func (e *endpoints) derive(provider string, debug bool) error {
	from := func(v Value, key, text string) Value {
		v.Key, v.text, v.Source = key, text, v.Source+" ("+v.Key+")"
		return v
	}
	switch {
	case e.api.text == "" && e.domain.text == "":
		e.domain = Value{Key: "domain", Layer: LayerDefault, Source: "provider and region", text: e.defaultDomain(provider)}
		e.api = from(e.domain, "api_url", "https://api."+e.domain.text)
	case e.api.text == "":
		e.api = from(e.domain, "api_url", "https://api."+e.domain.text)
	case e.domain.text == "" && strings.HasPrefix(e.api.text, "https://api."):
		u, err := url.Parse(e.api.text)
		if err == nil && u.Path == "" {
			e.domain = from(e.api, "domain", strings.TrimPrefix(u.Host, "api."))
		}
	}
	if e.direct.text == "" && e.domain.text == "" && !debug && isLoopback(e.api.text) {
		// A gateway of this machine serves both.
		e.direct = from(e.api, "sandbox_url", e.api.text)
	}
	if e.domain.text == "" && e.direct.text == "" && !debug {
		return wrong("conflicting settings: api_url "+e.api.text+" says where the control plane is ("+e.api.Source+"), but neither domain nor sandbox_url says where sandboxes are",
			"set domain; or sandbox_url, where one address serves all sandboxes, as that of sandboxd serve does")
	}
	return nil
}

func (e *endpoints) defaultDomain(provider string) string {
	switch {
	case provider == "e2b":
		return "e2b.app"
	case e.edition == "legacy":
		return e.region.text + ".e2b.fc.aliyuncs.com"
	}
	return e.region.text + ".sandbox.aliyuncs.com"
}

func (c *Config) checkAddresses(provider string, e endpoints) error {
	insecure, err := c.usableValue("insecure")
	if err != nil {
		return err
	}
	offline := c.Value("offline")
	for _, v := range []Value{e.api, e.direct, e.domain} {
		if v.text == "" || isLoopback(v.text) {
			continue
		}
		if strings.HasPrefix(v.text, "http://") && insecure.text != "true" {
			return wrong(v.Key+" "+v.text+" is not https, and not on this machine ("+v.Source+")", "use https; or set insecure = true in "+c.files)
		}
		if offline.text == "true" && (v.Key != "domain" || e.direct.text == "") {
			return wrong("offline is on ("+offline.Source+"), and provider "+provider+" is at "+v.text, "choose provider local, or turn offline off")
		}
	}
	return nil
}

// apiKey is the key of a service, once all addresses are trusted with it. The
// source of one that is not set says where it was looked for.
func (c *Config) apiKey(provider string, e endpoints) (Value, error) {
	key, err := c.usableValue("api_key")
	if err != nil {
		return key, err
	}
	id, half := c.Value("access_key_id"), c.Value("access_key_secret")
	for _, v := range e.all() {
		for _, s := range []Value{key, id, half, c.Value("security_token")} {
			if s.Key != "api_key" && provider != "fc" {
				continue
			}
			if err := c.trusted(v, s); err != nil {
				return key, err
			}
		}
	}
	if err := c.sameService(provider, e, key); err != nil {
		return key, err
	}
	if key.words != nil {
		key.text, err = runCommand(key.words, key.Source)
		return key, err
	}
	if key.text != "" {
		return key, nil
	}
	key.Source = strings.Join(append([]string{"option APIKey", "SANDBOX_API_KEY", "E2B_API_KEY"}, c.looked...), ", ")
	if provider != "fc" {
		return key, nil
	}
	for _, v := range []Value{id, half} {
		if err := c.usable(v); err != nil {
			return key, err
		}
	}
	return key, incomplete(id, half)
}

// incomplete is the error of half an AccessKey: another one must not stand in
// for it unseen.
func incomplete(id, half Value) error {
	is, isNot := id, half
	switch {
	case id.IsSet() == half.IsSet():
		return nil
	case half.IsSet():
		is, isNot = half, id
	}
	return &errdefs.Error{Code: "E1003", Op: op,
		Message: "incomplete AccessKey: " + is.Key + " is set (" + is.Source + "), " + isNot.Key + " (" + find(isNot.Key).vars[0] + ") is empty"}
}
