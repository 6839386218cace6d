package config

// distrusts reports whether v has less trust than key: it is of the project, and
// key of the user or of another file of the project. One file may be the
// developer's, kept out of the repository, and the other its author's.
func distrusts(v, key Value) bool {
	return v.Layer == LayerProject && (key.Layer != LayerProject || v.file != key.file)
}

// trusted refuses to send a secret to an address that others than its owner
// name.
func (c *Config) trusted(addr, key Value) error {
	if !addr.IsSet() || !key.IsSet() || !distrusts(addr, key) {
		return nil
	}
	return wrong(addr.Key+" "+addr.text+" comes from "+addr.Source+", the key from "+key.Source+": a project does not decide where your key is sent",
		"if you trust the address, "+c.confirm(key))
}

// confirm says how somebody vouches for what a project says.
func (c *Config) confirm(key Value) string {
	hint := "confirm it in your own profile in " + c.files + ", or in the environment"
	if key.Layer == LayerProject {
		hint += ", or beside the key"
	}
	return hint
}

// sameService refuses to send a key to a service that the project has chosen,
// by provider or region, where the settings that have the trust of the key lead
// to another. Regions of one service are the same service.
func (c *Config) sameService(provider string, e endpoints, key Value) error {
	if !key.IsSet() {
		return nil
	}
	by, own := c.chosenFor(provider, e, key)
	if by == nil {
		return nil
	}
	return wrong(by.Key+" "+by.text+" comes from "+by.Source+" and makes the provider "+provider+", the key from "+key.Source+" is without that one of "+own+": a project does not decide where your key is sent",
		"if it is a key of "+provider+", name that provider: "+c.confirm(key))
}

// chosenFor is the setting by which the project has sandboxes made at another
// service than own, to which the settings with the trust of key lead; or nil.
func (c *Config) chosenFor(provider string, e endpoints, key Value) (by *Value, own string) {
	mine := c.as(key)
	if own, _ = mine.Provider(); own == provider {
		return nil, own
	}
	if chosen, _ := c.Provider(); chosen != provider {
		return nil, own // asked for by the call
	}
	if own == "e2b" || own == "fc" {
		if there, err := mine.endpoints(own); err == nil && there.service() == e.service() {
			return nil, own // the user says where it is
		}
	}
	for _, k := range []string{"provider", "region", "api_key"} {
		if v := c.Value(k); distrusts(v, key) {
			return &v, own
		}
	}
	return nil, own
}

// as is c without what has less trust than key.
func (c *Config) as(key Value) *Config {
	out := *c
	out.layers = nil
	for _, l := range c.layers {
		kept := layer{}
		for k, v := range l {
			if !distrusts(v, key) {
				kept[k] = v
			}
		}
		out.layers = append(out.layers, kept)
	}
	return &out
}

// service tells services apart.
func (e *endpoints) service() (places [4]string) {
	for i, v := range e.all() {
		if places[i] = v.text; regionOf(v.text) != "" {
			places[i] = "fc"
		}
	}
	return places
}

// CheckSecrets is the error of giving a provider's sandboxes secrets of the user
// that are not its own: E8007 when it is the project that decides where they are,
// by an address, by the choice of provider or region, or by a key, whose owner can
// look into all of them. Sandboxes of this machine have all secrets.
func (c *Config) CheckSecrets(provider string) error {
	keys := []string{"api_key"}
	var places []Value
	var e endpoints
	switch provider = canonical(provider); provider {
	case "e2b", "fc":
		var err error
		if e, err = c.endpoints(provider); err != nil {
			return err
		}
		places = e.all()
		if provider == "fc" {
			keys = append(keys, "access_key_id", "access_key_secret", "security_token")
		}
	case "opensandbox":
		keys = []string{"opensandbox.url", "opensandbox.domain", "opensandbox.protocol", "opensandbox.api_key"}
	default:
		return nil
	}
	for _, k := range keys {
		places = append(places, c.Value(k))
	}
	for _, v := range places {
		if v.IsSet() && v.Layer == LayerProject {
			return c.notForSecrets(provider, v)
		}
	}
	if provider == "opensandbox" {
		return nil
	}
	if by, _ := c.chosenFor(provider, e, Value{}); by != nil {
		return c.notForSecrets(provider, *by)
	}
	return nil
}

func (c *Config) notForSecrets(provider string, v Value) error {
	what := v.Key
	if !v.secret {
		what += " " + v.text
	}
	return wrong(what+" comes from "+v.Source+": a project does not decide which sandboxes of "+provider+" get your secrets",
		"if you trust it, "+c.confirm(Value{}))
}
