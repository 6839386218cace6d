package config

import "strings"

// Provider chooses what creates sandboxes, and says why: what was asked for by
// name; else what an API key and its address or region belong to; else what an
// address of the user's belongs to; else local.
// AccessKeys, a kubeconfig or a running Docker choose nothing: too many machines
// have them for other reasons.
func (c *Config) Provider() (name, reason string) {
	if v := c.Value("provider"); v.text != "" {
		return canonical(v.text), "provider from " + v.Source
	}
	if key := c.Value("api_key"); key.IsSet() {
		return c.byKey(key)
	}
	for _, k := range []string{"opensandbox.api_key", "opensandbox.domain", "opensandbox.url"} {
		if v := c.Value(k); v.IsSet() {
			return "opensandbox", k + " from " + v.Source
		}
	}
	if name, reason := c.byAddress(); name != "" {
		return name, reason
	}
	return "local", "no provider and no API key is configured"
}

// byAddress chooses the service whose address the user has given without a key:
// a key that was forgotten must not make everything run here instead. The
// project cannot choose so.
func (c *Config) byAddress() (name, reason string) {
	for _, k := range []string{"sandbox_url", "api_url", "domain", "e2b_debug"} {
		v := c.Value(k)
		if v.text == "" || v.file != "" || k == "e2b_debug" && v.text != "true" {
			continue
		}
		if isUnder(hostOf(v.text), "aliyuncs.com") {
			name = "fc"
		} else {
			name = "e2b"
		}
		return name, k + " from " + v.Source + ", without an API key"
	}
	return "", ""
}

// canonical is the name under which a provider is known that has several.
func canonical(name string) string {
	if name == "express" {
		return "fc"
	}
	return name
}

// byKey chooses by what tells whose an API key is: keys of both services may
// look alike, so address and region decide first.
func (c *Config) byKey(key Value) (name, reason string) {
	reason = "API key from " + key.Source
	for _, k := range []string{"sandbox_url", "api_url", "domain"} {
		v := c.Value(k)
		if v.text == "" {
			continue
		}
		if isUnder(hostOf(v.text), "aliyuncs.com") {
			return "fc", reason + ", " + k + " from " + v.Source
		}
		return "e2b", reason + ", " + k + " from " + v.Source
	}
	if v := c.Value("e2b_debug"); v.text == "true" {
		return "e2b", reason + ", " + v.Source
	}
	// The cloud's own tools export a region on machines where E2B is used, too.
	v := c.Value("region")
	ofCloud := strings.HasPrefix(v.name, "ALIBABA_") || strings.HasPrefix(v.name, "ALICLOUD_")
	if v.text != "" && !(ofCloud && key.name == "E2B_API_KEY") {
		return "fc", reason + ", region from " + v.Source
	}
	return "e2b", reason
}

// ProviderSettings are what a provider needs to know, as providers.Config has
// them; those that are not set are left out. For e2b and fc: api_key,
// api_key_source (where it is from, or where it was looked for), api_url, domain,
// sandbox_url, region, edition, http2, max_retries, http_timeout, ca_file, debug
// and validate_api_key. For others: those of the table that bears their name.
//
// It is here that a wrong value of a setting of this provider is an error, E8007,
// and so are addresses that contradict each other, http where it is not allowed, a
// secret for an address that another file of the project names, or for another
// service than its own because the project chooses it, and a service elsewhere
// while offline is on. Half an AccessKey in place of an API key is E1003. The command of
// an api_key_command is run here; E1001 when it fails.
func (c *Config) ProviderSettings(provider string) (map[string]string, error) {
	switch provider = canonical(provider); provider {
	case "e2b", "fc":
		return c.cloud(provider)
	case "opensandbox":
		return c.openSandbox()
	}
	return c.own(provider)
}

// own are the settings below the name of a provider, or of a plugin.
func (c *Config) own(provider string) (map[string]string, error) {
	out := map[string]string{}
	for i := len(c.layers) - 1; i >= 0; i-- {
		for key, v := range c.layers[i] {
			rest, ok := strings.CutPrefix(key, provider+".")
			if !ok {
				rest, ok = strings.CutPrefix(key, "plugin."+provider+".")
			}
			if !ok {
				continue
			}
			if v.err != nil {
				return nil, v.err
			}
			out[rest] = v.text
		}
	}
	return out, nil
}

func (c *Config) openSandbox() (map[string]string, error) {
	out := map[string]string{}
	key, err := c.usableValue("opensandbox.api_key")
	if err != nil {
		return nil, err
	}
	for _, k := range []string{"opensandbox.url", "opensandbox.domain", "opensandbox.protocol"} {
		v, err := c.usableValue(k)
		if err != nil {
			return nil, err
		}
		if v.text == "" {
			continue
		}
		out[strings.TrimPrefix(k, "opensandbox.")] = v.text
		if err := c.trusted(v, key); err != nil {
			return nil, err
		}
	}
	if key.text != "" {
		out["api_key"] = key.text
	}
	return out, nil
}

func (c *Config) usableValue(key string) (Value, error) {
	v := c.Value(key)
	return v, c.usable(v)
}
