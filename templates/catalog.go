package templates

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn/errdefs"
)

// IndexVersion is the schema of catalogs that is read.
const IndexVersion = 1

// indexAge is how long a catalog is used without asking for a newer one.
const indexAge = time.Hour

// Index is a catalog: a file that gives names to templates in repositories, in the
// format of awesome-templates.yaml.
type Index struct {
	SchemaVersion int
	Templates     []IndexEntry
}

// IndexEntry is one template of a catalog.
type IndexEntry struct {
	Name         string
	Description  string
	Tags         []string
	Author       string
	Repo         string // owner/repo, or an address of git
	Path         string // folder in it
	Ref          string // ref of git; empty: the default branch, or the newest of the asked versions
	TemplateID   string // of a platform that has it ready
	Capabilities []string
	Status       string // official, community or experimental
}

var statuses = []string{"official", "community", "experimental"}

// ParseIndex reads a catalog. A file with mistakes gives an [*Invalid] with all of
// them, code E2007.
func ParseIndex(data []byte, name string) (*Index, error) {
	r := newReader(name)
	ix := &Index{SchemaVersion: IndexVersion}
	if m, ok := r.document(data); ok {
		r.at["."] = place{1, 1}
		if v := mapKey(m, "schema_version"); v != nil {
			if n, ok := r.integer(v, "schema_version"); ok && n > IndexVersion {
				r.problems = nil // the rest may mean something else
				r.fail(v, fmt.Sprintf("schema_version is %d; %d is the newest that is known", n, IndexVersion), "update this program")
				return nil, invalidAs("E2007", "read catalog", r.problems)
			}
		}
		r.fields(m, "a catalog", indexFields(ix))
		ix.check(r)
	}
	if err := invalidAs("E2007", "read catalog", r.problems); err != nil {
		return nil, err
	}
	return ix, nil
}

func indexFields(ix *Index) []field {
	return []field{
		number("schema_version", "schema_version", "1", &ix.SchemaVersion),
		items("templates", "templates", "the templates", &ix.Templates, nil, func(e *IndexEntry, path string) []field {
			return []field{
				text("name", path+".name", "required; unique, whatever the case", &e.Name),
				text("description", path+".description", "one sentence", &e.Description),
				texts("tags", path+".tags", "words to find it by", &e.Tags),
				text("author", path+".author", "who made it", &e.Author),
				text("repo", path+".repo", "required; owner/repo, or an address of git", &e.Repo),
				text("path", path+".path", "folder in the repository", &e.Path),
				text("ref", path+".ref", "ref of git", &e.Ref),
				text("template_id", path+".template_id", "of a platform that has it ready", &e.TemplateID),
				texts("capabilities", path+".capabilities", "as in a template", &e.Capabilities),
				text("status", path+".status", strings.Join(statuses, ", "), &e.Status),
			}
		}),
	}
}

func (ix *Index) check(r *reader) {
	seen := map[string]bool{}
	for i, e := range ix.Templates {
		at := fmt.Sprintf("templates[%d]", i)
		switch name := strings.ToLower(e.Name); {
		case e.Name == "":
			r.failModel(at, "a template has no name", "")
		case seen[name]:
			r.failModel(at+".name", fmt.Sprintf("name %q is there twice", e.Name), "")
		case !kebab.MatchString(name):
			r.failModel(at+".name", fmt.Sprintf("name %q is not kebab-case", e.Name), "")
		default:
			seen[name] = true
		}
		if e.Repo == "" {
			if e.TemplateID == "" {
				r.failModel(at, "a template has no repo", "")
			}
		} else if _, err := e.Source(); err != nil {
			r.failModel(at+".repo", err.Error(), "")
		}
		if e.Status != "" && !slices.Contains(statuses, e.Status) {
			r.failModel(at+".status", fmt.Sprintf("unknown status %q", e.Status), didYouMean(e.Status, statuses))
		}
		for j, c := range e.Capabilities {
			if !slices.ContainsFunc(capabilityGroups, func(g struct{ name, group string }) bool { return g.name == c }) {
				r.failModel(fmt.Sprintf("%s.capabilities[%d]", at, j), fmt.Sprintf("unknown capability %q", c), "")
			}
		}
	}
}

// Find returns the entry of a name, whatever its case.
func (ix *Index) Find(name string) (IndexEntry, bool) {
	i := slices.IndexFunc(ix.Templates, func(e IndexEntry) bool { return strings.EqualFold(e.Name, name) })
	if i < 0 {
		return IndexEntry{}, false
	}
	return ix.Templates[i], true
}

// Source is where the template of the entry is.
func (e IndexEntry) Source() (Ref, error) {
	ref, err := ParseRef(e.Repo)
	switch {
	case err != nil:
		return Ref{}, fmt.Errorf("repo %q: %w", e.Repo, err)
	case ref.Source != SourceGit || ref.Subdir != "" || ref.Rev != "":
		return Ref{}, fmt.Errorf("repo %q is not a repository", e.Repo)
	}
	s := e.Repo
	if e.Path != "" {
		s += "//" + strings.Trim(e.Path, "/")
	}
	if e.Ref != "" {
		s += "@" + e.Ref
	}
	if ref, err = ParseRef(s); err != nil {
		return Ref{}, fmt.Errorf("path or ref: %w", err)
	}
	return ref, nil
}

// indexState is what the cache knows of a catalog beside its text.
type indexState struct {
	URL     string    `json:"url"`
	ETag    string    `json:"etag,omitempty"`
	Checked time.Time `json:"checked"`
	SHA256  string    `json:"sha256"`
}

// LoadIndex reads the catalog at the address of the options: an https address or a
// file. A copy that was looked at within the last hour is used as it is; an older one
// too, with a notice, when the network fails. Notices are the second result. Without
// an address it is E8007, which says what to set.
func LoadIndex(ctx context.Context, o *ResolveOptions) (*Index, []string, error) {
	r, err := o.resolver()
	if err != nil {
		return nil, nil, err
	}
	if r.o.Index == "" {
		return nil, nil, &errdefs.Error{Code: "E8007", Op: "read catalog", Message: "no catalog is configured",
			Suggestion: "set SANDBOX_TEMPLATE_INDEX, or ResolveOptions.Index, to the https address or the file of one"}
	}
	ix, err := r.index(ctx)
	return ix, r.notices, err
}

func (r *resolver) index(ctx context.Context) (*Index, error) {
	address := r.o.Index
	switch {
	case address == "":
		return &Index{SchemaVersion: IndexVersion}, nil
	case !strings.Contains(address, "://"):
		data, err := os.ReadFile(address)
		if err != nil {
			return nil, errdefs.Wrap("E2005", "read catalog", address, err)
		}
		return ParseIndex(data, address)
	}
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" || u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())) {
		return nil, errdefs.New("E8007", "read catalog", fmt.Sprintf("address %q is not an https address", redactURL(address)))
	}
	sum := sha256.Sum256([]byte(address))
	base := filepath.Join(r.cache.dir, "index", hex.EncodeToString(sum[:16]))
	data, state := readIndex(base, redactURL(address))
	if data != nil && (r.o.Offline || !r.o.Refresh && time.Since(state.Checked) < indexAge && time.Since(state.Checked) >= 0) {
		return ParseIndex(data, redactURL(address))
	}
	if r.o.Offline {
		return nil, errdefs.New("E2005", "read catalog", "offline, and there is no copy of "+redactURL(address))
	}
	fresh, next, err := r.fetchIndex(ctx, address, state.ETag)
	switch {
	case errors.Is(err, errNotModified):
		state.Checked = time.Now().UTC()
		fresh, next = data, state
	case err != nil && data != nil && ctx.Err() == nil:
		r.notice("the catalog is the copy of %s: %v", state.Checked.Format(time.RFC3339), err)
		return ParseIndex(data, redactURL(address))
	case err != nil:
		return nil, err
	}
	ix, err := ParseIndex(fresh, redactURL(address))
	if err != nil {
		return nil, err // the good copy stays
	}
	meta, err := json.Marshal(next)
	if err == nil {
		err = errors.Join(writeFile(base+".yaml", fresh), writeFile(base+".json", meta))
	}
	if err != nil {
		r.notice("the catalog could not be kept: %v", err)
	}
	return ix, nil
}

// readIndex returns the copy of a catalog; nil when there is none, or not a whole
// one.
func readIndex(base, address string) ([]byte, indexState) {
	var state indexState
	data, err := os.ReadFile(base + ".yaml")
	if err != nil {
		return nil, state
	}
	meta, err := os.ReadFile(base + ".json")
	sum := sha256.Sum256(data)
	if err != nil || json.Unmarshal(meta, &state) != nil || state.URL != address || state.SHA256 != hex.EncodeToString(sum[:]) {
		return nil, indexState{}
	}
	return data, state
}

func (r *resolver) fetchIndex(ctx context.Context, address, etag string) ([]byte, indexState, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	resp, err := get(ctx, r.client(), address, etag)
	if err != nil {
		return nil, indexState{}, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxFile+1))
	if err != nil {
		return nil, indexState{}, networkError(ctx, redactURL(address), err)
	}
	sum := sha256.Sum256(data)
	return data, indexState{URL: redactURL(address), ETag: resp.Header.Get("ETag"), Checked: time.Now().UTC(), SHA256: hex.EncodeToString(sum[:])}, nil
}

func (r *resolver) client() *http.Client {
	if r.o.HTTPClient != nil {
		return r.o.HTTPClient
	}
	return http.DefaultClient
}
