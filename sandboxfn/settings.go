package sandboxfn

import (
	"log/slog"
	"os"
	"time"

	"github.com/agent-sandbox/sandbox-go/internal/config"
	"github.com/agent-sandbox/sandbox-go/internal/redact"
	"github.com/agent-sandbox/sandbox-go/internal/version"
)

// overrides are the options that stand for settings.
func (o *ClientOptions) overrides() map[string]config.Override {
	out := map[string]config.Override{}
	text := func(key, option, v string) {
		out[key] = config.Override{Text: v, Source: "option " + option}
	}
	text("profile", "Profile", o.Profile)
	text("provider", "Provider", o.Provider)
	text("api_key", "APIKey", o.APIKey.Reveal())
	text("api_url", "APIURL", o.APIURL)
	text("domain", "Domain", o.Domain)
	text("sandbox_url", "SandboxURL", o.SandboxURL)
	text("region", "Region", o.Region)
	text("state_dir", "StateDir", o.StateDir)
	text("cache_dir", "CacheDir", o.CacheDir)
	text("worker_binary", "WorkerBinary", o.WorkerBinary)
	text("template", "Template", o.Template)
	for _, d := range []struct {
		key, option string
		value       time.Duration
	}{{"lifetime", "Lifetime", o.Lifetime}, {"http_timeout", "RequestTimeout", o.RequestTimeout}, {"create_timeout", "CreateTimeout", o.CreateTimeout}} {
		if d.value != 0 {
			text(d.key, d.option, d.value.String())
		}
	}
	return out
}

// fill sets the options that are not set to what the settings say.
func (o *ClientOptions) fill(cfg *config.Config) {
	for key, field := range map[string]*string{
		"state_dir": &o.StateDir, "cache_dir": &o.CacheDir, "worker_binary": &o.WorkerBinary, "template": &o.Template,
	} {
		if *field == "" {
			*field = cfg.Text(key)
		}
	}
	for key, field := range map[string]*time.Duration{
		"lifetime": &o.Lifetime, "http_timeout": &o.RequestTimeout, "create_timeout": &o.CreateTimeout,
	} {
		if *field == 0 {
			*field = cfg.Duration(key)
		}
	}
	if o.Provider == "" {
		o.Provider, _ = cfg.Provider()
	}
	o.Profile = cfg.Profile()
}

// logger is what the client writes records to: l, or what the settings ask
// for. No secret passes it.
func logger(l *slog.Logger, cfg *config.Config) *slog.Logger {
	if l != nil {
		return redact.Logger(l)
	}
	level := cfg.Value("log.level")
	opts := &slog.HandlerOptions{Level: slog.LevelDebug}
	if !cfg.Bool("debug") {
		if level.Text() == "" {
			return slog.New(slog.DiscardHandler)
		}
		var at slog.Level
		at.UnmarshalText([]byte(level.Text())) // one of the table's
		opts.Level = at
	}
	if cfg.Text("log.format") == "json" {
		return redact.Logger(slog.New(slog.NewJSONHandler(os.Stderr, opts)))
	}
	return redact.Logger(slog.New(slog.NewTextHandler(os.Stderr, opts)))
}

// providerSettings are what provider name needs to know.
func (c *Client) providerSettings(name string) (map[string]string, error) {
	s, err := c.cfg.ProviderSettings(name)
	if err != nil || len(s) == 0 {
		return nil, err
	}
	s["user_agent"] = "sandbox-go/" + version.String()
	return s, nil
}
