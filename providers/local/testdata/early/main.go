// Command early is a program whose initialisers do what they should not do
// twice. It makes a sandbox and shows what they did in there.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/agent-sandbox/sandbox-go/internal/envd"
	"github.com/agent-sandbox/sandbox-go/providers"
	"github.com/agent-sandbox/sandbox-go/providers/local"
	_ "github.com/agent-sandbox/sandbox-go/providers/local/testdata/early/aaa"
)

func main() {
	if err := run(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func run() error {
	ctx := context.Background()
	p, err := local.New(providers.Config{StateDir: os.Args[1], Settings: map[string]string{"pool": "0"}})
	if err != nil {
		return err
	}
	defer p.Close()
	sb, err := p.Create(ctx, providers.CreateRequest{})
	if err != nil {
		return err
	}
	c, err := envd.New(&envd.Options{Dial: sb.Data.Dial, Token: sb.Data.Token.Reveal()})
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := c.Start(ctx, &envd.StartOptions{Path: "/bin/sh", Args: []string{"-c", "sleep 0.2; cat /tmp/early 2>/dev/null; echo end"}})
	if err != nil {
		return err
	}
	defer s.Close(nil)
	for {
		ev, err := s.Next()
		if err != nil {
			return err
		}
		if ev.End != nil {
			return nil
		}
		fmt.Printf("inside: %s", ev.Stdout)
	}
}
