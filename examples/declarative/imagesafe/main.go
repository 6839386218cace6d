package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/agent-sandbox/sandbox-go/examples/declarative/internal/where"
	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("imagesafe", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: imagesafe [-max PIXELS] [-o THUMBNAIL.png] PICTURE")
		flags.PrintDefaults()
	}
	size := flags.Int("max", 160, "longest side of the thumbnail, in pixels")
	out := flags.String("o", "thumbnail.png", "where to write it")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() != 1 {
		flags.Usage()
		return 2
	}
	if err := convert(ctx, flags.Arg(0), *out, *size, stdout); err != nil {
		fmt.Fprintln(stderr, "imagesafe:", err)
		if e, ok := errors.AsType[*sandboxfn.Error](err); ok && e.Hint() != "" {
			fmt.Fprintln(stderr, "imagesafe: hint:", e.Hint())
		}
		return 1
	}
	return 0
}

func convert(ctx context.Context, file, out string, size int, w io.Writer) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	start := time.Now()
	thumb, err := Shrink(ctx, data, size) // starts a sandbox, then runs shrink in it
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	cold := time.Since(start)
	start = time.Now()
	if _, err := Shrink(ctx, data, size); err != nil { // the same worker, now warm
		return err
	}
	warm := time.Since(start)
	if err := os.WriteFile(out, thumb.PNG, 0o644); err != nil {
		return err
	}
	fmt.Fprintf(w, "%s: %s of %d × %d pixels, thumbnail of %d × %d in %s (%d bytes)\n",
		file, thumb.Format, thumb.From.X, thumb.From.Y, thumb.Width, thumb.Height, out, len(thumb.PNG))

	// What is no picture, or a broken one, is an ordinary error.
	for _, hostile := range []struct {
		name string
		data []byte
	}{
		{"no picture", []byte("#!/bin/sh\nrm -rf /\n")},
		{"half a picture", data[:len(data)/2]},
	} {
		_, err := Shrink(ctx, hostile.data, size)
		fmt.Fprintf(w, "%s: %v\n", hostile.name, err)
	}

	inside, err := WhereItRuns(ctx)
	if err != nil {
		return err
	}
	return where.Report(w, inside, cold, warm)
}
