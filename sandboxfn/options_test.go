package sandboxfn

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/agent-sandbox/sandbox-go/providers"
)

func TestOptionsOverride(t *testing.T) {
	a, b := fstest.MapFS{"a": {}}, fstest.MapFS{"b": {}}
	base := Options{
		Template: "torch", Spare: 2, Idle: time.Hour, Concurrency: 4, InFlight: 9, GPU: "A10", Codec: CodecJSON, Nested: NestedLocal,
		Secrets: map[string]string{"A": "1", "B": "1"},
		Files:   []FileMount{{Remote: "/a", FS: a, Name: "a"}, {Remote: "/b", FS: a, Name: "a"}},
		Volumes: []Volume{{Name: "a", Path: "/va"}, {Name: "b", Path: "/vb"}},
	}
	if o := base.override(Options{}); o.Template != "torch" || o.Spare != 2 || o.GPU != "A10" || len(o.Files) != 2 || len(o.Volumes) != 2 || len(o.Secrets) != 2 || o.InFlight != 9 {
		t.Errorf("nothing set: %+v", o)
	}
	o := base.override(Options{
		Image: "torch:2", Spare: 1, Concurrency: 2, InFlight: 3, GPU: "H100:2", Codec: CodecCBOR, Nested: NestedRefuse,
		Secrets: map[string]string{"B": "2", "C": ""},
		Files:   []FileMount{{Remote: "/a/", FS: b, Name: "b"}},
		Volumes: []Volume{{Name: "c", Path: "/vb"}, {Name: "d", Path: "/vd"}},
	})
	if o.Template != "" || o.Image != "torch:2" {
		t.Errorf("template %q, image %q", o.Template, o.Image)
	}
	if o.Spare != 1 || o.Concurrency != 2 || o.InFlight != 3 || o.GPU != "H100:2" || o.Codec != CodecCBOR || o.Nested != NestedRefuse || o.Idle != time.Hour {
		t.Errorf("single values: %+v", o)
	}
	if d := o.withDefaults(); !maps.Equal(d.Secrets, map[string]string{"A": "1", "B": "2", "C": "C"}) || base.Secrets["B"] != "1" {
		t.Errorf("secrets %v", d.Secrets)
	}
	var files []string
	for _, f := range o.Files {
		files = append(files, f.Remote+" "+f.Name)
	}
	if !slices.Equal(files, []string{"/b a", "/a/ b"}) || len(base.Files) != 2 || base.Files[0].Name != "a" {
		t.Errorf("files %v", files)
	}
	if !slices.Equal(o.Volumes, []Volume{{Name: "a", Path: "/va"}, {Name: "c", Path: "/vb"}, {Name: "d", Path: "/vd"}}) {
		t.Errorf("volumes %v", o.Volumes)
	}
	if o := o.override(Options{Template: "base"}); o.Image != "" || o.Template != "base" {
		t.Errorf("template %q, image %q", o.Template, o.Image)
	}
	// Fresh takes the place of what it excludes.
	if d := base.override(Options{Fresh: true}).withDefaults(); d.Spare != 0 || d.Idle != 0 || d.Concurrency != 1 || d.check("f") != nil {
		t.Errorf("fresh: %+v, %v", d, d.check("f"))
	}
}

func TestOptionsCheck(t *testing.T) {
	tree := fstest.MapFS{"f": {}}
	for want, o := range map[string]Options{
		"Template and Image exclude":      {Template: "a", Image: "b"},
		"option Image":                    {Image: "a b"},
		`option GPU: "A10:"`:              {GPU: "A10:"},
		`option GPU: "A10:0"`:             {GPU: "A10:0"},
		`option GPU: ":2"`:                {GPU: ":2"},
		"option Spare: -1":                {Spare: -1},
		"option Spare: 1001":              {Spare: 1001},
		"option Concurrency: 1001":        {Concurrency: 1001},
		"option Concurrency: -1":          {Concurrency: -1},
		"option Fresh excludes":           {Fresh: true, Concurrency: 2},
		"option Fresh excludes C":         {Fresh: true, Spare: 1},
		"option Fresh excludes Concu":     {Fresh: true, Idle: time.Second},
		"option InFlight: -1":             {InFlight: -1},
		"option Batch: 1 ":                {Batch: 1},
		"option Batch: 1001":              {Batch: 1001},
		"option BatchWait needs Batch":    {BatchWait: time.Second},
		"option BatchWait: -1ns":          {Batch: 2, BatchWait: -1},
		"option Codec":                    {Codec: "gob"},
		"option Nested":                   {Nested: "maybe"},
		`option Secrets: "1A"`:            {Secrets: map[string]string{"1A": ""}},
		"option Secrets: SANDBOX_X is":    {Secrets: map[string]string{"SANDBOX_X": "Y"}},
		"both set A":                      {Env: map[string]string{"A": "x"}, Secrets: map[string]string{"A": "B"}},
		`option Files: "x"`:               {Files: []FileMount{{Remote: "x", FS: tree, Name: "f"}}},
		`option Files: "/"`:               {Files: []FileMount{{Remote: "/", FS: tree, Name: "f"}}},
		"option Files: /x has no FS":      {Files: []FileMount{{Remote: "/x", Name: "f"}}},
		`or "/f" is not a path in it`:     {Files: []FileMount{{Remote: "/x", FS: tree, Name: "/f"}}},
		"option Files: two are put at /x": {Files: []FileMount{{Remote: "/x", FS: tree, Name: "f"}, {Remote: "/x", FS: tree, Name: "f"}}},
		`option Volumes: ".a"`:            {Volumes: []Volume{{Name: ".a", Path: "/d"}}},
		`option Volumes: path "d"`:        {Volumes: []Volume{{Name: "a", Path: "d"}}},
		"are the same place":              {Volumes: []Volume{{Name: "a", Path: "/d"}, {Name: "b", Path: "/d/../d"}}},
		"or one lies in the other":        {Volumes: []Volume{{Name: "a", Path: "/d/x"}, {Name: "b", Path: "/d"}}},
	} {
		err := o.withDefaults().check("media.Describe")
		if CodeOf(err) != "E2011" || !strings.Contains(err.Error(), "media.Describe: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want … %s", o, err, want)
		}
	}
	for _, o := range []Options{
		{}, {Image: "ghcr.io/team/torch:2@sha256:00"}, {GPU: "A10"}, {GPU: "A10:4"}, {Spare: 1000}, {Concurrency: 1000}, {Fresh: true, Idle: NoIdle},
		{Batch: 2}, {Batch: 1000, BatchWait: time.Nanosecond}, {Codec: CodecJSON}, {Secrets: map[string]string{"A": "vault/path#key"}},
		{Volumes: []Volume{{Name: "A-b_c.1", Path: "/d"}, {Name: "A-b_c.1", Path: "/dd"}}},
	} {
		if err := o.withDefaults().check("f"); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// What a pool is found by says all that matters, and no secret.
func TestPoolKey(t *testing.T) {
	t.Setenv("POOL_KEY_TEST", "hunter2")
	key := func(o Options) poolKey {
		t.Helper()
		s := &setup{name: "f", unit: "u", opts: o.withDefaults()}
		k, err := s.poolKey(context.Background(), nil)
		must(t, err)
		return k
	}
	base := key(Options{})
	seen := map[poolKey]Options{base: {}}
	for _, o := range []Options{
		{Template: "x"}, {Image: "x"}, {Provider: "x"}, {CPU: 1}, {Memory: MiB}, {Disk: MiB}, {GPU: "x"}, {Env: map[string]string{"A": "b"}},
		{Secrets: map[string]string{"A": "POOL_KEY_TEST"}}, {Secrets: map[string]string{"B": "POOL_KEY_TEST"}},
		{Files: []FileMount{{Remote: "/x", FS: fstest.MapFS{"f": {Data: []byte("1")}}, Name: "f"}}},
		{Files: []FileMount{{Remote: "/x", FS: fstest.MapFS{"f": {Data: []byte("2")}}, Name: "f"}}},
		{Files: []FileMount{{Remote: "/x", FS: fstest.MapFS{"f": {Data: []byte("2"), Mode: 0o755}}, Name: "f"}}},
		{Files: []FileMount{{Remote: "/y", FS: fstest.MapFS{"f": {Data: []byte("2")}}, Name: "f"}}},
		{Volumes: []Volume{{Name: "a", Path: "/x"}}}, {Volumes: []Volume{{Name: "a", Path: "/x", ReadOnly: true}}},
		{Network: "none"}, {User: "root"}, {WorkDir: "/tmp"}, {Concurrency: 2}, {Fresh: true},
	} {
		k := key(o)
		if other, dup := seen[k]; dup {
			t.Errorf("%+v has the pool of %+v", o, other)
		}
		seen[k] = o
		if k != key(o) {
			t.Errorf("%+v: not the same again", o)
		}
		if strings.Contains(k.secrets, "hunter2") || strings.Contains(k.secrets, "POOL_KEY") {
			t.Errorf("key %+v", k)
		}
	}
	for _, o := range []Options{{Timeout: time.Hour}, {Workers: Workers{Max: 3}}, {Spare: 3}, {Idle: time.Hour}, {Log: LogSlog}, {Retries: 2, Idempotent: true}} {
		if key(o) != base {
			t.Errorf("%+v has a pool of its own", o)
		}
	}
	first := key(Options{Secrets: map[string]string{"A": "POOL_KEY_TEST"}})
	t.Setenv("POOL_KEY_TEST", "other")
	if key(Options{Secrets: map[string]string{"A": "POOL_KEY_TEST"}}) == first {
		t.Error("another value has the same pool")
	}
}

// The setting asks for the least, an option for more.
func TestLeastIsolation(t *testing.T) {
	chooses := providers.Capabilities{Set: map[providers.Capability]bool{providers.CapContainer: true}}
	for _, c := range []struct {
		asked, least, want string
		caps               providers.Capabilities
		refused            bool
	}{
		{"", "", "", chooses, false},
		{"gvisor", "", "gvisor", chooses, false},
		{"", "gvisor", "gvisor", chooses, false},
		{"container", "gvisor", "gvisor", chooses, false},
		{"gvisor", "container", "gvisor", chooses, false},
		{"", "container", "", providers.Capabilities{}, false},
		{"", "gvisor", "", providers.Capabilities{}, true},
	} {
		var check optionCheck
		if got := check.leastIsolation(c.asked, c.least, c.caps, "e2b"); got != c.want || (check.problem != "") != c.refused {
			t.Errorf("asked %q, least %q: %q, %q", c.asked, c.least, got, check.problem)
		}
	}
}
