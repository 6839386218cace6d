package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	userFile  = "~/.config/sandbox/config.toml"
	credsFile = "~/.config/sandbox/credentials.toml"
)

// What is wrong in files is said with the file, the line and what to do.
func TestFileMistakes(t *testing.T) {
	const secretText = "xyzzy-plugh-1234"
	for _, c := range []struct{ name, file, text, code, says string }{
		{"unknown key", userFile, "region = 'a'\ntempalte = 'x'", "E8007", userFile + ` line 2: "tempalte" is not a setting; did you mean template?`},
		{"unknown, nothing near", userFile, "zzz = 1", "E8007", `line 1: "zzz" is not a setting`},
		{"unknown in profile", userFile, "[profiles.work]\nregoin = 'x'", "E8007", `line 2, profile "work": "regoin" is not a setting; did you mean region?`},
		{"unknown table", userFile, "[dokcer]\nhost = 'x'", "E8007", `line 1: "dokcer" is not a setting`},
		{"unknown in table", userFile, "[docker]\n\nhots = 'x'", "E8007", `line 3: "docker.hots" is not a setting; did you mean docker.host?`},
		{"unknown inline", userFile, "fc = { editoin = 'flash' }", "E8007", `line 1: "fc.editoin" is not a setting; did you mean fc.edition?`},
		{"secret", userFile, "\napi_key = '" + secretText + "'", "E8007", "line 2: api_key is a secret; it belongs in " + credsFile},
		{"secret in profile", userFile, "[profiles.work]\naccess_key_secret = '" + secretText + "'", "E8007", "access_key_secret is a secret"},
		{"command", userFile, "api_key_command = ['x', '" + secretText + "']", "E8007", "api_key_command is a secret"},
		{"variable only", userFile, "debug = true", "E8007", "debug is not read from files (hint: set SANDBOX_DEBUG)"},
		{"value", userFile, "lifetime = 'soon'", "E8007", userFile + ` line 1: lifetime="soon": not a duration`},
		{"kind", userFile, "lifetime = [1]", "E8007", "line 1: lifetime is not a text, a number or true or false"},
		{"date", userFile, "template = 2020-01-01", "E8007", "template is not a text"},
		{"table as value", userFile, "[template]\nx = 1", "E8007", "template is a table here"},
		{"profile as value", userFile, "[profiles]\nwork = 1", "E8007", `profile "work" is not a table`},
		{"profiles as value", userFile, "profiles = 1", "E8007", "profiles is not a table"},
		{"no TOML", userFile, "a = 1\nb = = " + secretText, "E8007", userFile + ": line 2, column "},
		{"no TOML in credentials", credsFile, "[default]\napi_key = " + secretText, "E8007", credsFile + ": line 2, column "},
		{"twice", userFile, "region = 'a'\nregion = 'b'", "E8007", "line 2, column 1 is not TOML"},
		{"too deep", userFile, strings.Repeat("a.", 9) + "a = 1", "E8007", "line 1 has a key of more than 8 parts"},
		{"too large", userFile, strings.Repeat("# comment\n", 30000), "E8007", "larger than 256 KiB"},
		{"no section", credsFile, "api_key = '" + secretText + "'", "E8007", `line 1: "api_key" is in no section (hint: write it below [default] or [PROFILE])`},
		{"no secret", credsFile, "[default]\nregion = 'a'", "E8007", "region is no secret; it belongs in " + userFile},
		{"unknown secret", credsFile, "[work]\napi_kye = '" + secretText + "'", "E8007", `profile "work": "api_kye" is not a setting; did you mean api_key?`},
		{"both", credsFile, "[default]\napi_key = '" + secretText + "'\napi_key_command = ['x']", "E8007", "api_key and api_key_command are both set"},
		{"no profile", userFile, "default_profile = 'wrok'\n[profiles.work]\n[profiles.home]", "E1008", `no profile "wrok"; profiles: home, work (` + userFile + " line 1)"},
		{"no TOML of the predecessor", "~/.ebx/config.toml", "x", "E8007", "~/.ebx/config.toml: line 1"},
		{"value of the predecessor", "~/.ebx/config.toml", "[transport]\nmax_retries = 99", "E8007", "~/.ebx/config.toml line 2: max_retries"},
		{"quotes without end", ".env", "X=1\nE2B_API_KEY=\"" + secretText, "E8007", "./.env line 2: E2B_API_KEY: its quotes don't end"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Load(world{files: map[string]string{c.file: c.text}}.build(t))
			if err == nil {
				t.Fatal("no error")
			}
			text := err.Error()
			if !strings.Contains(text, c.code) || !strings.Contains(withHint(err), c.says) {
				t.Errorf("got  %s\nwant %s … %s", withHint(err), c.code, c.says)
			}
			if strings.Contains(withHint(err), secretText) {
				t.Errorf("%s shows the secret", text)
			}
		})
	}
}

func TestNoProfileAtAll(t *testing.T) {
	_, err := Load(world{env: map[string]string{"SANDBOX_PROFILE": "work"}}.build(t))
	wantError(t, err, "E1008", `no profile "work"; there are none (environment SANDBOX_PROFILE)`, "[profiles.work]", userFile)
	c := world{env: map[string]string{"SANDBOX_PROFILE": "default"}, files: map[string]string{userFile: "template = 'x'"}}.load(t)
	if c.Profile() != "" || c.Text("template") != "x" {
		t.Error("default is the top level")
	}
	// One that only has credentials is one, too.
	c = world{env: map[string]string{"SANDBOX_PROFILE": "work"}, files: map[string]string{credsFile: "[work]\napi_key = 'x'\n[default]\napi_key = 'y'"}}.load(t)
	if c.Profile() != "work" || c.Text("api_key") != "x" {
		t.Errorf("got %q", c.Text("api_key"))
	}
	// Profiles don't inherit from one another.
	c = world{env: map[string]string{"SANDBOX_PROFILE": "a"}, files: map[string]string{userFile: "[profiles.a]\n[profiles.b]\ntemplate = 'x'"}}.load(t)
	if c.Text("template") != "" {
		t.Error("inherited")
	}
}

func TestModes(t *testing.T) {
	for _, c := range []struct {
		file string
		mode os.FileMode
		code string
		says []string
	}{
		{credsFile, 0o600, "", nil},
		{credsFile, 0o400, "", nil},
		{credsFile, 0o644, "E1007", []string{credsFile + " is readable by others (mode 0644)", "chmod 600 " + credsFile}},
		{credsFile, 0o640, "E1007", []string{"readable by others (mode 0640)"}},
		{credsFile, 0o604, "E1007", nil},
		{credsFile, 0o620, "E1007", []string{"open by others (mode 0620)"}},
		{userFile, 0o600, "", nil},
		{userFile, 0o644, "", nil},
		{userFile, 0o664, "E8007", []string{userFile + " can be written by others (mode 0664)", "chmod 644"}},
		{userFile, 0o646, "E8007", nil},
		{"~/.ebx/.env", 0o666, "E8007", []string{"can be written by others"}},
		{"sandbox.toml", 0o666, "", nil},
		{".env", 0o666, "", nil},
	} {
		w := world{files: map[string]string{c.file: ""}}
		o := w.build(t)
		path := filepath.Join(o.Dir, c.file)
		if rest, ok := strings.CutPrefix(c.file, "~/"); ok {
			path = filepath.Join(o.Home, rest)
		}
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		_, err := Load(o)
		if c.code == "" && err != nil {
			t.Errorf("%s with %o: %v", c.file, c.mode, err)
		}
		if c.code == "E1007" {
			wantError(t, err, "E1007", c.says...)
		} else if c.code != "" {
			wantError(t, err, "E8007", c.says...)
		}
	}
}

func TestOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	for file, code := range map[string]string{credsFile: "E1007", userFile: "E8007"} {
		o := world{files: map[string]string{file: ""}}.build(t)
		if err := os.Chown(filepath.Join(o.Home, file[2:]), 12345, 12345); err != nil {
			t.Fatal(err)
		}
		_, err := Load(o)
		if err == nil || !strings.Contains(err.Error(), code) || !strings.Contains(err.Error(), "belongs to user 12345") {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// Files that are none, or can't be read, are an error; those that are not there
// are not.
func TestOddFiles(t *testing.T) {
	o := world{}.build(t)
	dir := filepath.Join(o.Home, ".config", "sandbox")
	if err := os.MkdirAll(filepath.Join(dir, "config.toml"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := Load(o)
	wantError(t, err, "E8007", userFile+" is not a file")

	o = world{files: map[string]string{"~/.config": "a file"}}.build(t)
	if _, err := Load(o); err != nil {
		t.Errorf("a file in the way: %v", err)
	}
	o = world{}.build(t)
	o.Home, o.Dir = "none", filepath.Join(o.Dir, "gone")
	if _, err := Load(o); err != nil {
		t.Errorf("nothing there: %v", err)
	}
	if os.Geteuid() != 0 {
		o = world{files: map[string]string{userFile: ""}}.build(t)
		if err := os.Chmod(filepath.Join(o.Home, ".config/sandbox/config.toml"), 0); err != nil {
			t.Fatal(err)
		}
		_, err := Load(o)
		wantError(t, err, "E8007", userFile+" cannot be read: permission denied")
	}
	_, err = Load(world{env: map[string]string{"SANDBOX_CONFIG_DIR": "relative"}}.build(t))
	wantError(t, err, "E8007", "SANDBOX_CONFIG_DIR", "absolute")
}

// The user's folder is where the variables say.
func TestConfigDir(t *testing.T) {
	files := map[string]string{
		userFile: "template = 'home'", "~/xdg/sandbox/config.toml": "template = 'xdg'", "~/own/config.toml": "template = 'own'",
	}
	o := world{files: files, env: map[string]string{}}.build(t)
	for _, c := range []struct{ own, xdg, want string }{
		{"", "", "home"}, {"", o.Home + "/xdg", "xdg"}, {"", "relative", "home"}, {o.Home + "/own", o.Home + "/xdg", "own"},
	} {
		env := map[string]string{"SANDBOX_CONFIG_DIR": c.own, "XDG_CONFIG_HOME": c.xdg}
		o.Lookup = func(n string) (string, bool) { v, ok := env[n]; return v, ok }
		cfg, err := Load(o)
		if err != nil || cfg.Text("template") != c.want {
			t.Errorf("%+v: %q, %v", c, cfg.Text("template"), err)
		}
	}
}

// The project is found upward to the root of its repository, and not above it.
func TestProjectDir(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"working directory", map[string]string{"sandbox.toml": "template = 'here'", "../sandbox.toml": "template = 'root'"}, "here"},
		{"root of the repository", map[string]string{"../sandbox.toml": "template = 'root'"}, "root"},
		{"above it", map[string]string{"../../sandbox.toml": "template = 'above'"}, ""},
		{".env beside it", map[string]string{"../sandbox.toml": "", "../.env": "SANDBOX_TEMPLATE=root", ".env": "SANDBOX_TEMPLATE=here"}, "root"},
		{".env alone", map[string]string{".env": "SANDBOX_TEMPLATE=here", "../.env": "SANDBOX_TEMPLATE=root"}, "here"},
		{"sandbox.toml first", map[string]string{"sandbox.toml": "template = 'toml'", ".env": "SANDBOX_TEMPLATE=env"}, "toml"},
	} {
		if got := (world{files: c.files}).load(t).Text("template"); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	// Without a repository only the working directory counts.
	o := world{files: map[string]string{"../sandbox.toml": "template = 'above'"}}.build(t)
	if err := os.Remove(filepath.Join(o.Dir, "../.git")); err != nil {
		t.Fatal(err)
	}
	if c, err := Load(o); err != nil || c.Text("template") != "" {
		t.Errorf("without a repository: %v", err)
	}
}

func TestEnvFileSetting(t *testing.T) {
	files := map[string]string{".env": "SANDBOX_TEMPLATE=dot", "other.env": "SANDBOX_TEMPLATE=other"}
	for _, c := range []struct{ variable, file, want string }{
		{"", "", "dot"}, {"none", "", ""}, {"other.env", "", "other"}, {"", "env_file = 'none'", ""}, {"other.env", "env_file = 'none'", "other"},
	} {
		all := map[string]string{userFile: c.file}
		for k, v := range files {
			all[k] = v
		}
		cfg := world{env: map[string]string{"SANDBOX_ENV_FILE": c.variable}, files: all}.load(t)
		if got := cfg.Text("template"); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
	_, err := Load(world{env: map[string]string{"SANDBOX_ENV_FILE": "gone.env"}}.build(t))
	wantError(t, err, "E8007", "env_file ./gone.env is not there (environment SANDBOX_ENV_FILE)")
}

func TestPredecessor(t *testing.T) {
	c := world{files: map[string]string{
		"~/.ebx/config.toml": "[transport]\napi_key = 'old-key-1234'\napi_base_url = 'https://api.old.example'\nhttp_timeout = 20\n[shortcuts]\nx = 1\n",
		"~/.ebx/.env":        "SANDBOX_TEMPLATE=old\n",
	}}.load(t)
	if c.Text("api_key") != "old-key-1234" || c.Text("api_url") != "https://api.old.example" || c.Text("http_timeout") != "20s" || c.Text("template") != "old" {
		t.Error("not read")
	}
	if v := c.Value("api_url"); v.Source != "~/.ebx/config.toml line 3" || v.Layer != LayerPredecessor {
		t.Errorf("from %q", v.Source)
	}
}
