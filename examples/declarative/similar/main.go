// Command similar finds the line of a file that is most like a question. The
// function that compares takes many texts at once: calls that are made at the
// same time run as one.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"unicode"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

//go:generate go tool sandboxgen

// Vector is where a text lies among others: similar texts lie close together.
type Vector [64]float64

// ErrNoWords is returned for a text without any.
var ErrNoWords = errors.New("no words")

// embed finds the vector of each text, from its words and their beginnings. A
// text without words has an error of its own; the others don't suffer.
//
//sandbox:func batch=32 batch_wait=5ms memory=256MiB network=none
func embed(ctx context.Context, text []string) ([]sandboxfn.Result[Vector], error) {
	all := make([]sandboxfn.Result[Vector], len(text))
	for i, t := range text {
		all[i].Value, all[i].Err = vector(t)
	}
	return all, nil
}

func vector(text string) (Vector, error) {
	var v Vector
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) })
	if len(words) == 0 {
		return v, ErrNoWords
	}
	for _, w := range words {
		for _, part := range []string{w, w[:min(len(w), 4)]} {
			h := fnv.New32a()
			io.WriteString(h, part)
			v[h.Sum32()%uint32(len(v))]++
		}
	}
	length := 0.0
	for _, x := range v {
		length += x * x
	}
	for i := range v {
		v[i] /= math.Sqrt(length)
	}
	return v, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) != 2 {
		fmt.Fprintln(stderr, "usage: similar FILE QUESTION")
		return 2
	}
	line, score, err := nearest(ctx, args[0], args[1])
	if err != nil {
		fmt.Fprintln(stderr, "similar:", err)
		if e, ok := errors.AsType[*sandboxfn.Error](err); ok && e.Hint() != "" {
			fmt.Fprintln(stderr, "similar: hint:", e.Hint())
		}
		return 1
	}
	fmt.Fprintf(stdout, "%.2f %s\n", score, line)
	return 0
}

// nearest returns the line that is most like the question, and how much: at
// most 1.
func nearest(ctx context.Context, file, question string) (string, float64, error) {
	lines, err := readLines(file)
	if err != nil {
		return "", 0, err
	}
	q, err := Embed(ctx, question) // generated from embed: one text, one vector
	if err != nil {
		return "", 0, fmt.Errorf("question: %w", err)
	}
	best, score := "", math.Inf(-1)
	for i, r := range EmbedFunc.MapUnordered(ctx, slices.Values(lines)) {
		if errors.Is(r.Err, ErrNoWords) {
			continue
		}
		if r.Err != nil {
			return "", 0, r.Err
		}
		dot := 0.0
		for k, x := range r.Value {
			dot += x * q[k]
		}
		if dot > score {
			best, score = lines[i], dot
		}
	}
	if best == "" {
		return "", 0, fmt.Errorf("%s: %w", file, ErrNoWords)
	}
	return best, score, nil
}

func readLines(file string) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var lines []string
	s := bufio.NewScanner(f)
	for s.Scan() {
		lines = append(lines, s.Text())
	}
	return lines, s.Err()
}
