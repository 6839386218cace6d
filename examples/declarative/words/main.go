// Command words calls a function here and in a sandbox.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

//go:generate go tool sandboxgen

var ErrNoWords = errors.New("no words")

type Stats struct {
	Words   int
	Longest string
	Ran     string
}

// measure counts the words of a text.
//
//sandbox:func timeout=10s memory=256MiB network=none
func measure(ctx context.Context, text string) (*Stats, error) {
	words := strings.Fields(text)
	if len(words) == 0 {
		return nil, ErrNoWords
	}
	s := &Stats{Words: len(words)}
	for _, w := range words {
		if len(w) > len(s.Longest) {
			s.Longest = w
		}
	}
	host, _ := os.Hostname()
	s.Ran = fmt.Sprintf("pid %d, uid %d, host %s", os.Getpid(), os.Getuid(), host)
	return s, nil
}

func main() {
	ctx := context.Background()
	here, _ := measure(ctx, "a function call")
	there, err := Measure(ctx, "a sandboxed function call") // generated from measure
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Printf("here:  %+v\n", *here)
	fmt.Printf("there: %+v\n", *there)

	_, err = Measure(ctx, "")
	fmt.Println("an error is itself:", err == ErrNoWords)
}
