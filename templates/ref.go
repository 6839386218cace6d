package templates

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// Source is the kind of place that a reference names.
type Source string

// Sources of templates.
const (
	SourceFolder  Source = "folder"  // ./dir, ../dir, /dir
	SourceFile    Source = "file"    // ./x.tar.gz, /x.tgz, /x.tar
	SourceName    Source = "name"    // built-in, or of the index
	SourceGit     Source = "git"     // owner/repo, or an address of git
	SourceArchive Source = "archive" // https address of an archive
	SourceOCI     Source = "oci"     // artifact of a registry
)

// Ref is a parsed reference to a template.
type Ref struct {
	Source Source

	Path    string // SourceFolder and SourceFile: as written
	Name    string // SourceName
	Version string // SourceName: 1.2.3, ~1.2 or ^1; empty: the newest, or what the index says
	URL     string // SourceGit and SourceArchive: without subdir and ref
	Image   string // SourceOCI: without oci://
	Subdir  string // SourceGit, SourceArchive, SourceFile: folder in it; clean, empty for the whole
	Rev     string // SourceGit: branch, tag, commit, or a version as above; empty: the default branch
}

var (
	repoName  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+$`)
	revForm   = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._/+-]*$`)
	archives  = regexp.MustCompile(`\.(tar|tgz|tar\.gz|tar\.zst)$`)
	plainHTTP = map[string]bool{"http": true, "git": true}
)

// ParseRef reads a reference:
//
//	./dir, ../dir, /dir                   a folder; with .tar, .tar.gz, .tgz or .tar.zst an archive
//	name, name:1.2.3, name:~1.2, name:^1  built-in, or of the index
//	owner/repo[//subdir][@ref]            a repository on GitHub
//	https://, ssh://, file://, git@host:  a git repository, with [//subdir][@ref]
//	https://….tar.gz[//subdir]            an archive
//	oci://host/repo[:tag|@digest]         an artifact
//
// A ref of git may be a version, as those of names, which is looked for among the
// tags. Addresses without encryption are taken for this machine only.
func ParseRef(s string) (Ref, error) {
	switch {
	case s == "":
		return Ref{}, errors.New("the reference is empty")
	case strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return Ref{}, errors.New("the reference holds a space or a control character")
	case strings.HasPrefix(s, "-"):
		return Ref{}, errors.New("the reference begins with a dash")
	case s == ".", s == "..", strings.HasPrefix(s, "./"), strings.HasPrefix(s, "../"), strings.HasPrefix(s, "/"):
		return localRef(s)
	case strings.HasPrefix(s, "oci://"):
		image := strings.TrimPrefix(s, "oci://")
		if _, err := name.ParseReference(image); err != nil || !strings.Contains(image, "/") {
			return Ref{}, errors.New("write oci://host/repo:tag")
		}
		return Ref{Source: SourceOCI, Image: image}, nil
	case strings.Contains(s, "://"):
		return urlRef(s)
	}
	if at := strings.Index(s, "@"); at > 0 && scpForm(s) {
		rest, rev, hasRev := strings.Cut(s[at+1:], "@")
		host, p, _ := strings.Cut(rest, ":")
		return gitRef(s[:at+1]+host+":", p, rev, hasRev)
	}
	if strings.Contains(s, "/") {
		p, rev, hasRev := strings.Cut(s, "@")
		repo, _, _ := strings.Cut(p, "//")
		if !repoName.MatchString(repo) {
			return Ref{}, errors.New("write owner/repo[//subdir][@ref], or ./dir for a folder")
		}
		return gitRef("https://github.com/", p, rev, hasRev)
	}
	n, version, ok := strings.Cut(s, ":")
	if !kebab.MatchString(n) {
		hint := ""
		if strings.Contains(n, "@") {
			hint = "; the version of a name follows a colon"
		}
		return Ref{}, fmt.Errorf("%q is not a name: lower-case letters and digits with dashes between%s", n, hint)
	}
	if ok {
		if _, err := parseConstraint(version); err != nil {
			return Ref{}, err
		}
	}
	return Ref{Source: SourceName, Name: n, Version: version}, nil
}

// scpForm reports whether s has the form user@host:path.
func scpForm(s string) bool {
	user, rest, _ := strings.Cut(s, "@")
	host, p, ok := strings.Cut(rest, ":")
	return ok && p != "" && !strings.ContainsAny(user+host, "/:") && host != ""
}

func localRef(s string) (Ref, error) {
	file, sub := s, ""
	if i := strings.Index(s[1:], "//"); i >= 0 {
		file, sub = s[:i+1], s[i+3:]
	}
	if archives.MatchString(file) {
		sub, err := subdir(sub)
		return Ref{Source: SourceFile, Path: file, Subdir: sub}, err
	}
	return Ref{Source: SourceFolder, Path: s}, nil
}

func urlRef(s string) (Ref, error) {
	scheme, rest, _ := strings.Cut(s, "://")
	authority, p, ok := strings.Cut(rest, "/")
	if !ok || p == "" {
		return Ref{}, errors.New("the address has no path")
	}
	p, rev, hasRev := strings.Cut(p, "@")
	u, err := url.Parse(scheme + "://" + authority + "/")
	switch {
	case err != nil:
		return Ref{}, errors.New("the address is malformed")
	case scheme == "file" && authority != "", scheme != "file" && u.Hostname() == "":
		return Ref{}, errors.New("the host of the address is malformed")
	case strings.HasPrefix(u.Hostname(), "-"):
		return Ref{}, errors.New("the host of the address begins with a dash")
	case strings.ContainsAny(p, "?#"):
		return Ref{}, errors.New("the address has a query or a fragment")
	case plainHTTP[scheme] && !isLoopback(u.Hostname()):
		return Ref{}, errors.New("the address is not encrypted; write https")
	case scheme != "https" && scheme != "http" && scheme != "ssh" && scheme != "git" && scheme != "file":
		return Ref{}, fmt.Errorf("addresses of %s are not taken; write https, ssh, file or oci", scheme)
	}
	if file, sub, _ := strings.Cut(p, "//"); archives.MatchString(file) && (scheme == "https" || scheme == "http") {
		if hasRev {
			return Ref{}, errors.New("an archive has no @ref")
		}
		sub, err := subdir(sub)
		return Ref{Source: SourceArchive, URL: scheme + "://" + authority + "/" + file, Subdir: sub}, err
	}
	return gitRef(scheme+"://"+authority+"/", p, rev, hasRev)
}

func gitRef(prefix, p, rev string, hasRev bool) (Ref, error) {
	p, sub, _ := strings.Cut(p, "//")
	sub, err := subdir(sub)
	switch {
	case err != nil:
		return Ref{}, err
	case hasRev && rev == "":
		return Ref{}, errors.New("nothing follows the @")
	case isConstraint(rev):
		if _, err := parseConstraint(rev); err != nil {
			return Ref{}, err
		}
	case hasRev && (!revForm.MatchString(rev) || strings.Contains(rev, "..") || strings.Contains(rev, "//") || strings.HasSuffix(rev, "/") || strings.HasSuffix(rev, ".lock")):
		return Ref{}, fmt.Errorf("%q is not a ref of git", rev)
	}
	return Ref{Source: SourceGit, URL: prefix + strings.TrimSuffix(p, "/"), Subdir: sub, Rev: rev}, nil
}

// subdir cleans the folder in a repository or archive.
func subdir(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	clean := path.Clean(s)
	if path.IsAbs(s) || clean == ".." || strings.HasPrefix(clean, "../") || strings.Contains(s, "\\") {
		return "", fmt.Errorf("subdir %q is outside", s)
	}
	if clean == "." {
		clean = ""
	}
	return clean, nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// String writes the reference as it is parsed. A password in an address is left
// out.
func (r Ref) String() string {
	tail := ""
	if r.Subdir != "" {
		tail = "//" + r.Subdir
	}
	if r.Rev != "" {
		tail += "@" + r.Rev
	}
	switch r.Source {
	case SourceFolder, SourceFile:
		return r.Path + tail
	case SourceOCI:
		return "oci://" + r.Image
	case SourceName:
		if r.Version != "" {
			return r.Name + ":" + r.Version
		}
		return r.Name
	}
	return strings.TrimPrefix(redactURL(r.URL), "https://github.com/") + tail
}

// redactURL hides the user and password of an address, save a plain user of ssh.
func redactURL(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.User == nil {
		return s
	}
	if _, secret := u.User.Password(); secret || u.Scheme != "ssh" {
		u.User = url.User("xxxxx")
	}
	return u.String()
}
