package config

import (
	"strings"

	"github.com/agent-sandbox/sandbox-go/internal/near"
)

// kind is the type of a setting's value.
type kind int

const (
	text kind = iota
	name
	region
	address // http, https or unix URL
	host    // host[:port]
	duration
	toggle
	number
	choice
	path
	secret
	foreign // read by others; here to be known and documented
)

// place is the file in which a setting may be.
type place int

const (
	nowhere place = iota
	inConfig
	inCredentials
)

// A setting is one row of the table from which everything is derived: what is
// read, where it may be, and the page docs/configuration.md.
type setting struct {
	key     string   // in files, and for Config.Value
	vars    []string // canonical name first, then aliases
	kind    kind
	place   place
	project bool     // may come from the project layer
	ranked  bool     // two names with different values in one layer are an error, as for secrets and addresses
	choices []string // of choice
	def     string   // value when nothing sets it
	auto    string   // what happens then, in words; empty: def
	about   string
}

func (s *setting) secret() bool  { return s.kind == secret }
func (s *setting) address() bool { return s.kind == address || s.kind == host || s.key == "e2b_debug" }

// strict reports whether names of s that differ in one layer are an error.
func (s *setting) strict() bool { return s.secret() || s.address() || s.ranked }

// lazy reports whether a wrong value matters only where it is used: it is of
// one provider, and must not stop programs that use another.
func (s *setting) lazy() bool {
	return s.secret() || s.address() || s.key == "region" || strings.Contains(s.key, ".") && !strings.HasPrefix(s.key, "log.")
}

// table lists every setting. It is data only: importing the package does
// nothing.
var table = []setting{
	{key: "profile", vars: []string{"SANDBOX_PROFILE"}, kind: name, auto: "`default_profile` of the user's file", about: "profile of the user's files"},
	{key: "provider", vars: []string{"SANDBOX_PROVIDER"}, kind: name, place: inConfig, project: true, ranked: true, auto: "chosen, see below", about: "what creates sandboxes"},
	{key: "region", vars: []string{"SANDBOX_REGION", "ALIBABA_CLOUD_REGION_ID", "ALICLOUD_REGION"}, kind: region, place: inConfig, project: true, auto: "cn-hangzhou for fc", about: "region of the service"},
	{key: "api_key", vars: []string{"SANDBOX_API_KEY", "E2B_API_KEY"}, kind: secret, place: inCredentials, project: true, about: "key of the service"},
	{key: "api_url", vars: []string{"SANDBOX_API_URL", "E2B_API_URL", "SANDBOX_API_BASE_URL"}, kind: address, place: inConfig, project: true, auto: "from provider and region", about: "control plane"},
	{key: "domain", vars: []string{"SANDBOX_DOMAIN", "E2B_DOMAIN"}, kind: host, place: inConfig, project: true, auto: "from provider and region", about: "domain of the data plane, `host[:port]`"},
	{key: "sandbox_url", vars: []string{"SANDBOX_URL", "E2B_SANDBOX_URL"}, kind: address, place: inConfig, project: true, about: "data plane, where one address serves all sandboxes"},
	{key: "insecure", vars: []string{"SANDBOX_INSECURE"}, kind: toggle, place: inConfig, def: "false", about: "allows `http` addresses of other machines"},
	{key: "template", vars: []string{"SANDBOX_TEMPLATE", "EBX_TEMPLATE"}, kind: name, place: inConfig, project: true, auto: "the provider's", about: "template of sandboxes"},
	{key: "template_index", vars: []string{"SANDBOX_TEMPLATE_INDEX"}, kind: text, auto: "none: built-in names only", about: "catalog of templates, an `https` address or a file; of the environment alone, for `sandbox template` and package templates"},
	{key: "lifetime", vars: []string{"SANDBOX_LIFETIME"}, kind: duration, place: inConfig, project: true, auto: "the provider's", about: "lifetime of sandboxes"},
	{key: "http_timeout", vars: []string{"SANDBOX_HTTP_TIMEOUT"}, kind: duration, place: inConfig, project: true, auto: "30s", about: "limit of one request"},
	{key: "create_timeout", vars: []string{"SANDBOX_CREATE_TIMEOUT"}, kind: duration, place: inConfig, project: true, auto: "120s, or what the provider needs", about: "limit of a creation"},
	{key: "max_retries", vars: []string{"SANDBOX_MAX_RETRIES"}, kind: number, place: inConfig, project: true, def: "3", about: "repetitions of requests that may be repeated, 0 to 10"},
	{key: "http2", vars: []string{"SANDBOX_HTTP2"}, kind: toggle, place: inConfig, project: true, def: "true", about: "HTTP/2 where the service has it"},
	{key: "proxy", vars: []string{"HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"}, kind: foreign, about: "proxy, as net/http reads it"},
	{key: "ca_file", vars: []string{"SANDBOX_CA_FILE", "SSL_CERT_FILE"}, kind: path, place: inConfig, auto: "the system's", about: "certificates to trust besides the system's"},
	{key: "access_key_id", vars: []string{"ALIBABA_CLOUD_ACCESS_KEY_ID", "ALICLOUD_ACCESS_KEY_ID", "ALICLOUD_ACCESS_KEY", "AccessKey"}, kind: secret, place: inCredentials, project: true, about: "AccessKey of Alibaba Cloud"},
	{key: "access_key_secret", vars: []string{"ALIBABA_CLOUD_ACCESS_KEY_SECRET", "ALICLOUD_ACCESS_KEY_SECRET", "ALICLOUD_SECRET_KEY", "AccessSecret"}, kind: secret, place: inCredentials, project: true, about: "its secret"},
	{key: "security_token", vars: []string{"ALIBABA_CLOUD_SECURITY_TOKEN", "ALICLOUD_SECURITY_TOKEN"}, kind: secret, place: inCredentials, project: true, about: "its STS token"},
	{key: "team_id", vars: []string{"SANDBOX_TEAM_ID", "E2B_TEAM_ID", "TEAM_ID"}, kind: name, place: inConfig, about: "team"},
	{key: "key_exchange", vars: []string{"SANDBOX_KEY_EXCHANGE"}, kind: choice, choices: []string{"off", "on", "persistent"}, place: inConfig, auto: "off; on when provider fc is explicit", about: "AccessKey for API key"},
	{key: "fc.edition", vars: []string{"SANDBOX_FC_EDITION"}, kind: choice, choices: []string{"flash", "legacy"}, place: inConfig, project: true, auto: "that of the address, else flash", about: "family of fc's addresses"},
	{key: "fc.generation", vars: []string{"SANDBOX_FC_GENERATION"}, kind: choice, choices: []string{"1", "2"}, place: inConfig, project: true, auto: "not sent", about: "generation of fc's templates"},
	{key: "fcnative.trigger_auth", vars: []string{"SANDBOX_FC_TRIGGER_AUTH"}, kind: choice, choices: []string{"jwt", "function"}, place: inConfig, auto: "jwt", about: "fcnative: authentication of triggers"},
	{key: "fcnative.network", vars: []string{"SANDBOX_FC_NETWORK"}, kind: choice, choices: []string{"internet", "vpc"}, place: inConfig, auto: "internet", about: "fcnative: network of functions"},
	{key: "docker.host", vars: []string{"DOCKER_HOST"}, kind: text, place: inConfig, auto: "probed", about: "address of the engine"},
	{key: "isolation", vars: []string{"SANDBOX_ISOLATION"}, kind: choice, choices: []string{"container", "gvisor", "microvm"}, place: inConfig, project: true, auto: "the provider's", about: "least isolation; a project can only make it stronger"},
	{key: "local.pool", vars: []string{"SANDBOX_LOCAL_POOL"}, kind: text, place: inConfig, auto: "1", about: "local: sandboxes kept built for the next creation, 0 to 64"},
	{key: "local.small_runtime", vars: []string{"SANDBOX_LOCAL_SMALL_RUNTIME"}, kind: choice, choices: []string{"on", "off"}, place: inConfig, auto: "on", about: "local: pid 1 is the small runtime, where it is installed"},
	{key: "local.isolation", vars: []string{"SANDBOX_LOCAL_ISOLATION"}, kind: choice, choices: []string{"container", "gvisor", "auto-strong"}, place: inConfig, auto: "container", about: "local: what stands between sandboxes and this machine"},
	{key: "local.expose", vars: []string{"SANDBOX_LOCAL_EXPOSE"}, kind: text, place: inConfig, about: "local: paths of this machine, separated by colons, that every sandbox shows read-only"},
	{key: "local.cgroup_parent", vars: []string{"SANDBOX_LOCAL_CGROUP_PARENT"}, kind: text, place: inConfig, auto: "the own group", about: "local: control group below which those of sandboxes are made"},
	{key: "k8s.kubeconfig", vars: []string{"KUBECONFIG"}, kind: text, place: inConfig, auto: "kubectl's", about: "kubeconfig"},
	{key: "k8s.context", vars: []string{"SANDBOX_K8S_CONTEXT"}, kind: text, place: inConfig, auto: "kubectl's", about: "its context"},
	{key: "k8s.namespace", vars: []string{"SANDBOX_K8S_NAMESPACE"}, kind: name, place: inConfig, auto: "kubectl's", about: "namespace"},
	{key: "k8s.warm_pool", vars: []string{"SANDBOX_K8S_POOL"}, kind: name, place: inConfig, about: "pool"},
	{key: "k8s.router_url", vars: []string{"SANDBOX_K8S_ROUTER_URL"}, kind: address, place: inConfig, about: "router"},
	{key: "opensandbox.url", kind: address, place: inConfig, auto: "from the two below", about: "OpenSandbox server"},
	{key: "opensandbox.domain", vars: []string{"OPEN_SANDBOX_DOMAIN"}, kind: host, project: true, auto: "localhost:8080", about: "OpenSandbox server"},
	{key: "opensandbox.protocol", vars: []string{"OPEN_SANDBOX_PROTOCOL"}, kind: choice, choices: []string{"http", "https"}, project: true, auto: "http", about: "its protocol"},
	{key: "opensandbox.api_key", vars: []string{"OPEN_SANDBOX_API_KEY"}, kind: secret, place: inCredentials, project: true, about: "its key"},
	{key: "server_token", vars: []string{"SANDBOX_SERVER_TOKEN", "EBX_SERVER_TOKEN"}, kind: secret, auto: "set by the provider", about: "token of the server inside a sandbox"},
	{key: "debug", vars: []string{"SANDBOX_DEBUG"}, kind: toggle, project: true, def: "false", about: "debug log on standard error"},
	{key: "e2b_debug", vars: []string{"E2B_DEBUG"}, kind: toggle, project: true, def: "false", about: "provider e2b: control plane `http://localhost:3000`, data plane on ports of localhost. An address, not a log switch"},
	{key: "validate_api_key", vars: []string{"E2B_VALIDATE_API_KEY"}, kind: toggle, project: true, def: "true", about: "provider e2b: check the form of the key"},
	{key: "log.level", vars: []string{"SANDBOX_LOG_LEVEL", "EBX_LOG_LEVEL"}, kind: choice, choices: []string{"debug", "info", "warn", "error"}, place: inConfig, project: true, auto: "no log", about: "log on standard error, from this level on"},
	{key: "log.format", vars: []string{"SANDBOX_LOG_FORMAT"}, kind: choice, choices: []string{"text", "json"}, place: inConfig, project: true, def: "text", about: "its form"},
	{key: "offline", vars: []string{"SANDBOX_OFFLINE"}, kind: toggle, place: inConfig, project: true, def: "false", about: "only providers on this machine"},
	{key: "config_dir", vars: []string{"SANDBOX_CONFIG_DIR"}, kind: path, auto: "`$XDG_CONFIG_HOME/sandbox`, else `~/.config/sandbox`", about: "the user's files"},
	{key: "state_dir", vars: []string{"SANDBOX_STATE_DIR"}, kind: path, auto: "`$XDG_STATE_HOME/sandbox`, else `~/.local/state/sandbox`; `/var/lib/sandbox` for root", about: "state of this machine"},
	{key: "cache_dir", vars: []string{"SANDBOX_CACHE_DIR"}, kind: path, auto: "`$XDG_CACHE_HOME/sandbox`, else `~/.cache/sandbox`", about: "what can be made again"},
	{key: "worker_binary", vars: []string{"SANDBOX_WORKER_BINARY"}, kind: path, auto: "the program itself", about: "executable of workers"},
	{key: "env_file", vars: []string{"SANDBOX_ENV_FILE"}, kind: path, place: inConfig, auto: "`.env` of the project", about: "another file, or `none`"},
}

// openTables are those of files whose keys their providers know.
var openTables = []string{"fcnative", "plugin"}

// others are variables, or beginnings of such, that are read elsewhere.
var others = []string{
	"SANDBOX_ID", "SANDBOX_MODE", "SANDBOX_NSINIT", "SANDBOX_RUNTIME_BINARY", "SANDBOX_WORKER", "SANDBOX_MCP_TOKEN", "SANDBOX_AGENT_",
	"SANDBOX_CODEX_", "SANDBOX_QWEN_", "SANDBOX_SERVER_", "SANDBOX_TEMPLATE_FILE", "SANDBOX_LIVE_", "SANDBOX_PLUGIN_",
}

// builtIn are the providers that a project may name.
var builtIn = []string{"docker", "e2b", "express", "fc", "fcnative", "k8s", "local", "opensandbox"}

// find returns the setting of a key, or nil.
func find(key string) *setting {
	for i := range table {
		if table[i].key == key {
			return &table[i]
		}
	}
	return nil
}

// findVar returns the setting that a variable gives, or nil.
func findVar(name string) *setting {
	for i := range table {
		for _, v := range table[i].vars {
			if v == name {
				return &table[i]
			}
		}
	}
	return nil
}

// isOpen reports whether key lies in a table whose keys are not ours.
func isOpen(key string) bool {
	for _, t := range openTables {
		if key == t || strings.HasPrefix(key, t+".") {
			return true
		}
	}
	return false
}

// isTable reports whether settings lie below key.
func isTable(key string) bool {
	for i := range table {
		if strings.HasPrefix(table[i].key, key+".") {
			return true
		}
	}
	return isOpen(key)
}

// nearest is the name among names that a mistyped one may mean, or "".
func nearest(wrong string, names []string) string {
	best, limit := "", max(2, len(wrong)/3)
	for _, n := range names {
		if d := distance(strings.ToLower(wrong), strings.ToLower(n)); d <= limit {
			best, limit = n, d-1
		}
	}
	return best
}

// distance is the number of letters to change, add or leave out. Long words are
// never near.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 1 << 20
	}
	return near.Distance(a, b)
}
