package templates

import (
	"strings"
	"testing"
)

func TestParseRef(t *testing.T) {
	for s, want := range map[string]Ref{
		".":                        {Source: SourceFolder, Path: "."},
		"./a":                      {Source: SourceFolder, Path: "./a"},
		"/srv/a@b":                 {Source: SourceFolder, Path: "/srv/a@b"},
		"./a.tar.gz":               {Source: SourceFile, Path: "./a.tar.gz"},
		"/a.tgz//sub/x":            {Source: SourceFile, Path: "/a.tgz", Subdir: "sub/x"},
		"python":                   {Source: SourceName, Name: "python"},
		"node-web:1.2.3":           {Source: SourceName, Name: "node-web", Version: "1.2.3"},
		"node-web:~1.2":            {Source: SourceName, Name: "node-web", Version: "~1.2"},
		"node-web:^1":              {Source: SourceName, Name: "node-web", Version: "^1"},
		"o/r":                      {Source: SourceGit, URL: "https://github.com/o/r"},
		"o/r.x//a/b@feature/x":     {Source: SourceGit, URL: "https://github.com/o/r.x", Subdir: "a/b", Rev: "feature/x"},
		"o/r@^1.2":                 {Source: SourceGit, URL: "https://github.com/o/r", Rev: "^1.2"},
		"https://h/o/r.git//s@v1":  {Source: SourceGit, URL: "https://h/o/r.git", Subdir: "s", Rev: "v1"},
		"https://u:p@h/o/r@v1":     {Source: SourceGit, URL: "https://u:p@h/o/r", Rev: "v1"},
		"ssh://git@h:22/o/r":       {Source: SourceGit, URL: "ssh://git@h:22/o/r"},
		"git@h.example:o/r//s@v1":  {Source: SourceGit, URL: "git@h.example:o/r", Subdir: "s", Rev: "v1"},
		"file:///srv/r.git@main":   {Source: SourceGit, URL: "file:///srv/r.git", Rev: "main"},
		"http://127.0.0.1:80/r":    {Source: SourceGit, URL: "http://127.0.0.1:80/r"},
		"https://h/a.tar.gz//x":    {Source: SourceArchive, URL: "https://h/a.tar.gz", Subdir: "x"},
		"oci://h.example/r:v1":     {Source: SourceOCI, Image: "h.example/r:v1"},
		"https://h/o/r//./s/../t/": {Source: SourceGit, URL: "https://h/o/r", Subdir: "t"},
	} {
		got, err := ParseRef(s)
		if err != nil || got != want {
			t.Errorf("ParseRef(%q) = %+v, %v; want %+v", s, got, err, want)
			continue
		}
		if again, err := ParseRef(got.String()); err != nil || again != got && !strings.Contains(s, "u:p@") {
			t.Errorf("%q reads as %+v, %v", got.String(), again, err)
		}
		if strings.Contains(got.String(), ":p@") {
			t.Errorf("%q shows the password", got.String())
		}
	}
	for _, s := range []string{
		"", "a b", "-x", "--upload-pack=x", "Name", "name@v1", "name:", "name:latest", "name:>1", "a/b/c", "a//b", "o/r@", "o/r@-x", "o/r@a..b", "o/r@a b",
		"o/r//../x", "o/r///etc", "http://example.com/r", "git://example.com/r", "ftp://h/r", "ext::sh -c x", "ext://h/x", "https://-h/x", "https:///x", "https://h", "https://h/x?y=1",
		"file://host/x", "oci://x", "oci://UPPER/x y", "https://h/a.tar.gz@v1", "-oProxyCommand=x@h:o/r", "o/r@~x",
	} {
		if got, err := ParseRef(s); err == nil {
			t.Errorf("ParseRef(%q) = %+v", s, got)
		}
	}
}

func TestVersions(t *testing.T) {
	tags := []string{"v1.0.0", "1.2.3", "v1.2.10", "v1.3.0-rc.1", "v2.0.0", "v0.3.1", "v0.3.9", "v0.4.0", "v0.0.3", "v0.0.4", "web/v1.2.11", "latest", "v1", "v3.0.0-rc.1"}
	for _, c := range []struct{ want, subdir, tag string }{
		{"1.2.3", "", "1.2.3"}, {"~1.2", "", "v1.2.10"}, {"~1.2", "web", "web/v1.2.11"}, {"^1", "", "v1.2.10"}, {"1", "", "v1.2.10"}, {"~1", "", "v1.2.10"},
		{"^0.3", "", "v0.3.9"}, {"^0.0.3", "", "v0.0.3"}, {"~1.2.4", "", "v1.2.10"}, {"^1.2.11", "", ""}, {"9.9.9", "", ""}, {"1.3.0-rc.1", "", "v1.3.0-rc.1"},
		{"^1.3.0-rc.0", "", "v1.3.0-rc.1"}, {"^2", "", "v2.0.0"}, {"^3", "", ""}, {"^0", "", "v0.4.0"},
	} {
		k, err := parseConstraint(c.want)
		if err != nil {
			t.Errorf("%s: %v", c.want, err)
			continue
		}
		if got := k.pick(tags, c.subdir); got != c.tag {
			t.Errorf("%s in %q: %q, want %q", c.want, c.subdir, got, c.tag)
		}
	}
	for _, s := range []string{"", "x", "1.2.3.4", "^", "01.2.3", ">=1", "1.x", "~1.2.3-"} {
		if _, err := parseConstraint(s); err == nil {
			t.Errorf("version %q is taken", s)
		}
	}
}
