package main

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/agent-sandbox/sandbox-go/internal/sbtest"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

func TestMain(m *testing.M) { os.Exit(sbtest.Main(m)) }

func TestPlanets(t *testing.T) {
	sbtest.NeedSandbox(t)
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"earth", "Pluto", "MARS"}, &stdout, &stderr)
	const want = "Earth: radius 6371 km, day 24.0 h, year 365 days (data loaded 1×)\n" +
		"Mars: radius 3390 km, day 24.7 h, year 687 days (data loaded 1×)\n"
	if code != 1 || stdout.String() != want || stderr.String() != "planets: no such planet: \"Pluto\"\n" {
		t.Errorf("exit %d\nstdout: %s\nstderr: %s", code, stdout.String(), stderr.String())
	}
	if code := run(t.Context(), nil, &stdout, &stderr); code != 2 {
		t.Errorf("without names: exit %d", code)
	}
}

func TestParameters(t *testing.T) {
	sbtest.NeedSandbox(t)
	bad := NewAlmanac(AlmanacParams{File: "planets.txt"}, nil)
	defer bad.Close()
	if _, _, err := bad.Find(t.Context(), "Earth"); !errors.Is(err, sandboxfn.ErrValidation) {
		t.Errorf("a file that is no .csv: %v", err)
	}
	missing := NewAlmanac(AlmanacParams{File: "/data/stars.csv"}, nil)
	defer missing.Close()
	if _, _, err := missing.Find(t.Context(), "Earth"); !errors.Is(err, os.ErrNotExist) || !errors.Is(err, sandboxfn.ErrWorkerStart) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// The struct works without a sandbox, too.
func TestLocal(t *testing.T) {
	a := &almanac{File: "planets.csv"}
	if err := a.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.find(t.Context(), "Pluto"); !errors.Is(err, ErrNoPlanet) {
		t.Errorf("got %v", err)
	}
}
