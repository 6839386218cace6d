package sandboxfn_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
	"github.com/agent-sandbox/sandbox-go/sandboxfn/worker"
)

// What sandboxgen writes for a function
//
//	//sandbox:func
//	func count(text string) (int, error)
//
// and for one with batch=16. These examples run without sandboxes, and keep no
// workers, which nobody would end.
var (
	CountFunc = sandboxfn.Declare[string, int](sandboxfn.Decl{
		Package: "example.com/words", Name: "count",
		Options: sandboxfn.Options{Idle: sandboxfn.NoIdle},
	})
	UpperFunc = sandboxfn.DeclareBatch[string, string](sandboxfn.Decl{
		Package: "example.com/words", Name: "upper",
		Options: sandboxfn.Options{Batch: 16, BatchWait: 20 * time.Millisecond, Idle: sandboxfn.NoIdle},
	})

	ctx = worker.WithMode(context.Background(), &worker.Mode{InProcess: true})
)

var ErrNoWords = errors.New("no words")

func init() {
	sandboxfn.Bind(CountFunc, func(_ context.Context, text string) (int, error) {
		if n := len(strings.Fields(text)); n > 0 {
			return n, nil
		}
		return 0, ErrNoWords
	})
	sandboxfn.BindBatch(UpperFunc, func(_ context.Context, texts []string) ([]string, error) {
		upper := make([]string, len(texts))
		for i, s := range texts {
			upper[i] = fmt.Sprintf("%s, in a batch of %d", strings.ToUpper(s), len(texts))
		}
		return upper, nil
	})
	sandboxfn.Errors("example.com/words", sandboxfn.Sentinel("example.com/words.ErrNoWords", &ErrNoWords))
	sandboxfn.Takeover("example.com/words")
}

func ExampleFunc_Map() {
	texts := []string{"a rose is a rose", "", "is a rose"}
	for n, err := range CountFunc.Map(ctx, slices.Values(texts)) {
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(n)
	}
	// Output:
	// 5
	// no words
	// 3
}

func ExampleFunc_MapUnordered() {
	texts := []string{"a rose is a rose", "", "is a rose"}
	total := 0
	for i, r := range CountFunc.MapUnordered(ctx, slices.Values(texts)) {
		if r.Err != nil {
			fmt.Printf("text %d: %v\n", i, r.Err)
		}
		total += r.Value
	}
	fmt.Println(total, "words")
	// Output:
	// text 1: no words
	// 8 words
}

func ExampleFunc_Collect() {
	fmt.Println(CountFunc.Collect(ctx, []string{"a rose is a rose", "is a rose"}))
	fmt.Println(CountFunc.Collect(ctx, []string{"a rose is a rose", "", "is a rose"}))
	// Output:
	// [5 3] <nil>
	// [] no words
}

func ExampleFunc_Spawn() {
	call := CountFunc.Spawn(ctx, "a rose is a rose")
	// … something else, meanwhile …
	fmt.Println(call.Wait(ctx))
	// Output: 5 <nil>
}

func ExampleGather() {
	a, b := CountFunc.Spawn(ctx, "a rose is a rose"), CountFunc.Spawn(ctx, "is a rose")
	fmt.Println(sandboxfn.Gather(ctx, a, b))
	// Output: [5 3] <nil>
}

func ExampleDeclareBatch() {
	// Calls of one text each, which run together.
	fmt.Println(UpperFunc.Collect(ctx, []string{"a", "rose"}))
	// Output: [A, in a batch of 2 ROSE, in a batch of 2] <nil>
}
