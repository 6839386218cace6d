package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agent-sandbox/sandbox-go/examples/declarative/internal/where"
	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
)

func TestMain(m *testing.M) { os.Exit(sbtest.Main(m)) }

func TestDescribeWeather(t *testing.T) {
	sbtest.NeedSandbox(t)
	data, err := os.ReadFile("weather.csv")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Describe(t.Context(), data)
	if err != nil {
		t.Fatal(err)
	}
	want, err := describe(t.Context(), data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the sandbox and this process differ (-here +sandbox):\n%s", diff)
	}
	if got.Rows != 2922 {
		t.Errorf("%d rows, want 2922", got.Rows)
	}
	for _, c := range got.Columns {
		if c.Name == "temp_max" && (c.Numbers == nil || math.Abs(c.Numbers.Mean-16.83) > 1) {
			t.Errorf("temp_max: %+v", c.Numbers)
		}
	}
}

func TestErrorsAreThemselves(t *testing.T) {
	sbtest.NeedSandbox(t)
	_, err := Describe(t.Context(), nil)
	if err != ErrEmpty {
		t.Errorf("no data: %v, want ErrEmpty itself", err)
	}
	bad := []byte("a,b\n1,2\n1,2,3\n")
	_, err = Describe(t.Context(), bad)
	_, local := describe(t.Context(), bad)
	parse, ok := errors.AsType[*csv.ParseError](err)
	if !ok || parse.Line != 3 || !errors.Is(err, csv.ErrFieldCount) {
		t.Errorf("malformed data: %v", err)
	}
	if err == nil || err.Error() != local.Error() {
		t.Errorf("text %q, want %q as in a local call", err, local)
	}
}

func TestItRunsElsewhere(t *testing.T) {
	sbtest.NeedSandbox(t)
	inside, err := WhereItRuns(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	outside, err := where.Here()
	if err != nil {
		t.Fatal(err)
	}
	if shared := where.Shared(inside, outside); len(shared) > 0 || len(inside.Namespaces) != 7 {
		t.Errorf("shared namespaces: %v of %v", shared, inside.Namespaces)
	}
	if inside.Hostname == outside.Hostname || !strings.Contains(inside.User, "uid 1000") {
		t.Errorf("inside is %+v", inside)
	}
}

func TestCommand(t *testing.T) {
	sbtest.NeedSandbox(t)
	broken := filepath.Join(t.TempDir(), "broken.csv")
	if err := os.WriteFile(broken, []byte("a,b\n\"1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name           string
		args           []string
		code           int
		stdout, stderr string
	}{
		{"good", []string{"weather.csv"}, 0, "2922 rows", ""},
		{"no argument", nil, 2, "", "usage: csvstats"},
		{"missing file", []string{"missing.csv"}, 1, "", "missing.csv: no such file"},
		{"broken file", []string{broken}, 1, "", "csvstats: read row 1:"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(context.Background(), c.args, &stdout, &stderr)
		if code != c.code || !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) {
			t.Errorf("%s: exit %d\nstdout: %s\nstderr: %s", c.name, code, stdout.String(), stderr.String())
		}
	}
}
