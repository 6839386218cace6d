// Command planets asks an object in a sandbox, which has loaded its data once.
package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

//go:generate go tool sandboxgen

// ErrNoPlanet is returned for a name that the almanac does not have.
var ErrNoPlanet = errors.New("no such planet")

// almanac knows the planets. Its exported fields are parameters, its unexported
// ones are what it keeps in the sandbox.
//
//sandbox:class memory=256MiB network=none timeout=10s
//sandbox:with files=planets.csv:/data/planets.csv
type almanac struct {
	File string `sandbox:"default=/data/planets.csv" validate:"omitempty,endswith=.csv"`

	planets map[string]Planet
	loaded  int // how often
}

// Planet is one planet of the almanac.
type Planet struct {
	Name                         string
	RadiusKM, DayHours, YearDays float64
}

// load reads the file, before the first call.
//
//sandbox:enter
func (a *almanac) load(ctx context.Context) error {
	f, err := os.Open(a.File)
	if err != nil {
		return err
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return err
	}
	a.planets = map[string]Planet{}
	for i, row := range rows[1:] {
		p := Planet{Name: row[0]}
		for j, field := range []*float64{&p.RadiusKM, &p.DayHours, &p.YearDays} {
			if *field, err = strconv.ParseFloat(row[j+1], 64); err != nil {
				return fmt.Errorf("%s: row %d: %w", a.File, i+2, err)
			}
		}
		a.planets[strings.ToLower(p.Name)] = p
	}
	a.loaded++
	return nil
}

// find returns a planet, and how often the data was loaded for it.
//
//sandbox:method
func (a *almanac) find(ctx context.Context, name string) (p Planet, loads int, err error) {
	p, ok := a.planets[strings.ToLower(name)]
	if !ok {
		return p, a.loaded, fmt.Errorf("%w: %q", ErrNoPlanet, name)
	}
	return p, a.loaded, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, names []string, stdout, stderr io.Writer) int {
	if len(names) == 0 {
		fmt.Fprintln(stderr, "usage: planets NAME…")
		return 2
	}
	a := NewAlmanac(AlmanacParams{}, nil) // generated from almanac; no sandbox yet
	defer a.Close()
	code := 0
	for _, name := range names {
		p, loads, err := a.Find(ctx, name)
		if err != nil {
			fmt.Fprintln(stderr, "planets:", err)
			if e, ok := errors.AsType[*sandboxfn.Error](err); ok && e.Hint() != "" {
				fmt.Fprintln(stderr, "planets: hint:", e.Hint())
			}
			code = 1
			continue
		}
		fmt.Fprintf(stdout, "%s: radius %.0f km, day %.1f h, year %.0f days (data loaded %d×)\n", p.Name, p.RadiusKM, p.DayHours, p.YearDays, loads)
	}
	return code
}
