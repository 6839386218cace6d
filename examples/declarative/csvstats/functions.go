// Command csvstats prints typed statistics of a CSV file. The file is parsed in
// a sandbox; only the summary, a Go value, comes back.
//
//sandbox:package network=none memory=512MiB timeout=30s
package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/agent-sandbox/sandbox-go/examples/declarative/internal/where"
)

//go:generate go tool sandboxgen

// ErrEmpty says that a file has no rows below its header.
var ErrEmpty = errors.New("no rows")

// Summary describes one CSV file.
type Summary struct {
	Rows    int
	Columns []Column
}

// Column describes one column: numbers if every value is one, else text.
type Column struct {
	Name    string
	Missing int      // empty values
	Numbers *Numbers // nil for a column of text
	Text    *Text    // nil for a column of numbers
}

// Numbers are the moments of a column of numbers.
type Numbers struct {
	Min, Median, Max float64
	Mean, StdDev     float64
}

// Text says how a column of text is spread.
type Text struct {
	Distinct int
	Top      []Count // at most three, commonest first
}

// Count is how often a value occurs.
type Count struct {
	Value string
	Times int
}

// describe summarises the columns of a CSV file whose first line names them.
//
//sandbox:func
func describe(ctx context.Context, data []byte) (*Summary, error) {
	r := csv.NewReader(bytes.NewReader(data))
	header, err := r.Read()
	if err == io.EOF {
		return nil, ErrEmpty
	}
	if err != nil {
		return nil, fmt.Errorf("read header: %w", err)
	}
	columns := make([][]string, len(header))
	rows := 0
	for ; ; rows++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		record, err := r.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read row %d: %w", rows+1, err)
		}
		for i, v := range record {
			columns[i] = append(columns[i], v)
		}
	}
	if rows == 0 {
		return nil, ErrEmpty
	}
	s := &Summary{Rows: rows}
	for i, name := range header {
		s.Columns = append(s.Columns, summarise(name, columns[i]))
	}
	return s, nil
}

// whereAmI tells where functions of this package run.
//
//sandbox:func as=WhereItRuns
func whereAmI() (where.Place, error) { return where.Here() }

func summarise(name string, values []string) Column {
	c := Column{Name: name}
	present := slices.DeleteFunc(slices.Clone(values), func(v string) bool { return v == "" })
	c.Missing = len(values) - len(present)
	if numbers, ok := parse(present); ok {
		c.Numbers = moments(numbers)
	} else {
		c.Text = spread(present)
	}
	return c
}

func parse(values []string) ([]float64, bool) {
	numbers := make([]float64, len(values))
	for i, v := range values {
		n, err := strconv.ParseFloat(v, 64)
		if err != nil {
			return nil, false
		}
		numbers[i] = n
	}
	return numbers, len(numbers) > 0
}

func moments(numbers []float64) *Numbers {
	slices.Sort(numbers)
	var sum float64
	for _, n := range numbers {
		sum += n
	}
	mean := sum / float64(len(numbers))
	var squares float64
	for _, n := range numbers {
		squares += (n - mean) * (n - mean)
	}
	middle := (numbers[(len(numbers)-1)/2] + numbers[len(numbers)/2]) / 2
	return &Numbers{
		Min: numbers[0], Median: middle, Max: numbers[len(numbers)-1],
		Mean: mean, StdDev: math.Sqrt(squares / float64(len(numbers))),
	}
}

func spread(values []string) *Text {
	times := map[string]int{}
	for _, v := range values {
		times[v]++
	}
	distinct := slices.SortedFunc(maps.Keys(times), func(a, b string) int {
		if times[a] != times[b] {
			return times[b] - times[a]
		}
		if a < b {
			return -1
		}
		return 1
	})
	t := &Text{Distinct: len(distinct)}
	for _, v := range distinct[:min(3, len(distinct))] {
		t.Top = append(t.Top, Count{v, times[v]})
	}
	return t
}
