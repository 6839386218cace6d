//go:build linux

// Command ownruntime is the runtime of a sandbox and the commands that it offers in
// one program: what a template author ships who writes Go. In an image it is the
// only process that is started:
//
//	SANDBOX_SERVER_TOKEN=… ownruntime --listen :49983
//
// and then, with the same token,
//
//	curl -H "Authorization: Bearer …" http://…:49983/commands
//	curl -H "Authorization: Bearer …" -d '{"text":"to be or not to be"}' http://…:49983/commands/words
//
// A Go program reaches the same with Sandbox.Commands and Sandbox.Invoke.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/agent-sandbox/sandbox-go/runtime/command"
	"github.com/agent-sandbox/sandbox-go/runtime/server"
)

func main() {
	commands, err := commands()
	if err != nil {
		fmt.Fprintln(os.Stderr, "ownruntime:", err)
		os.Exit(1)
	}
	server.Main(&server.Options{Commands: commands})
}

// commands are what the sandbox offers beside the API of every runtime.
func commands() (*command.Registry, error) {
	r := command.NewRegistry()
	if err := command.Register(r, "words", words, &command.RegisterOptions{Description: "counts the words of a text"}); err != nil {
		return nil, err
	}
	err := command.Register(r, "disk", disk, &command.RegisterOptions{Description: "says how much a folder holds"})
	return r, err
}

type wordsArgs struct {
	Text string `json:"text" doc:"what to count in"`
	Top  int    `json:"top" default:"3" doc:"how many words to list"`
}

type wordCount struct {
	Word  string `json:"word"`
	Count int    `json:"count"`
}

// words lists the most frequent words of a text.
func words(_ context.Context, a wordsArgs) ([]wordCount, error) {
	counts := map[string]int{}
	for w := range strings.FieldsSeq(strings.ToLower(a.Text)) {
		counts[w]++
	}
	list := []wordCount{}
	for w, n := range counts {
		list = append(list, wordCount{w, n})
	}
	slices.SortFunc(list, func(x, y wordCount) int {
		if x.Count != y.Count {
			return y.Count - x.Count
		}
		return strings.Compare(x.Word, y.Word)
	})
	return list[:max(0, min(a.Top, len(list)))], nil
}

type diskArgs struct {
	Folder string `json:"folder,omitempty" doc:"empty: the working folder"`
}

// disk asks a program of the sandbox. It runs like every command there, under the
// same policy.
func disk(ctx context.Context, a diskArgs) (string, error) {
	if a.Folder == "" {
		a.Folder = "."
	}
	out, err := (&command.Exec{Path: "du", Args: []string{"-sk", "--", a.Folder}}).Run(ctx)
	if err != nil {
		return "", err
	}
	if out.ExitCode != 0 {
		return "", fmt.Errorf("du: %s", strings.TrimSpace(string(out.Stderr)))
	}
	size, _, _ := strings.Cut(string(out.Stdout), "\t")
	return size + " KiB", nil
}
