package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

type snapshotJSON struct {
	ID        string            `json:"id"`
	Provider  string            `json:"provider"`
	Name      string            `json:"name,omitempty"`
	SandboxID string            `json:"sandbox_id,omitempty"`
	CreatedAt *time.Time        `json:"created_at,omitempty"`
	SizeBytes int64             `json:"size_bytes,omitempty"`
	Metadata  map[string]string `json:"metadata"`
}

func snapshotOf(s *sandboxfn.SnapshotInfo) snapshotJSON {
	return snapshotJSON{
		ID: s.ID, Provider: s.Provider, Name: s.Name, SandboxID: s.SandboxID,
		CreatedAt: moment(s.CreatedAt), SizeBytes: int64(s.Size), Metadata: orEmpty(s.Metadata),
	}
}

func (a *app) snapshotCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "snapshot",
		Short: "keep the files of sandboxes",
		Long:  `Snapshots keep the files of sandboxes. "sandbox create --snapshot" begins with them.`,
	})
	cmd.AddCommand(a.snapshotCreateCommand(), a.snapshotListCommand(), a.snapshotRemoveCommand())
	return cmd
}

func (a *app) snapshotCreateCommand() *cobra.Command {
	var o sandboxfn.SnapshotOptions
	var metadata []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "create ID",
		Short: "keep the files of a sandbox and print the id of the snapshot",
		Args:  arguments(1, 1, "the id of a sandbox"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if o.Metadata, err = parsePairs(cmd, "metadata", metadata, false); err != nil {
				return err
			}
			c, err := a.open()
			if err != nil {
				return err
			}
			done := a.progress("taking a snapshot of " + args[0])
			s, err := c.Snapshot(cmd.Context(), args[0], &o)
			done()
			if err != nil {
				return err
			}
			if asJSON {
				return a.printJSON(snapshotOf(s))
			}
			_, err = fmt.Fprintln(a.stdout, s.ID)
			return err
		},
		ValidArgsFunction: a.completeSandbox,
	}
	cmd.Flags().StringVar(&o.Name, "name", "", "`text` for people")
	cmd.Flags().StringArrayVarP(&metadata, "metadata", "m", nil, "`KEY=VALUE` that is kept with it; repeatable")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (a *app) snapshotListCommand() *cobra.Command {
	var o sandboxfn.SnapshotListOptions
	var quiet, asJSON bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list snapshots",
		Args:    arguments(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if quiet && asJSON {
				return usage(cmd, "--quiet and --json exclude each other")
			}
			c, err := a.open()
			if err != nil {
				return err
			}
			found := []snapshotJSON{}
			var rows [][]string
			for s, err := range c.Snapshots(cmd.Context(), &o) {
				if err != nil {
					return err
				}
				found = append(found, snapshotOf(s))
				rows = append(rows, []string{s.ID, s.Name, s.SandboxID, ago(s.CreatedAt), bytesText(s.Size), pairs(s.Metadata)})
			}
			switch {
			case asJSON:
				return a.printJSON(found)
			case quiet:
				for _, s := range found {
					if _, err := fmt.Fprintln(a.stdout, s.ID); err != nil {
						return err
					}
				}
				return nil
			}
			return a.printTable([]string{"ID", "NAME", "SANDBOX", "CREATED", "SIZE", "METADATA"}, rows)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&o.SandboxID, "sandbox", "", "`id` of the sandbox that they were taken of")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print ids only")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (a *app) snapshotRemoveCommand() *cobra.Command {
	cmd := a.eachCommand("rm", "remove snapshots", "Rm removes snapshots. Sandboxes that were made from them live on.",
		func(ctx context.Context, c *sandboxfn.Client, id string) error { return c.DeleteSnapshot(ctx, id) })
	cmd.Use, cmd.Args = "rm SNAPSHOT…", arguments(1, -1, "the id of a snapshot")
	cmd.ValidArgsFunction = a.completeSnapshots
	return cmd
}
