package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

// createFlags are the options of what a new sandbox is like.
type createFlags struct {
	o                      sandboxfn.CreateOptions
	env, metadata, volumes []string
}

func (f *createFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.Var(span{&f.o.Lifetime}, "lifetime", "`duration` after which it ends, as 30m (default: the provider's)")
	fl.Float64Var(&f.o.CPU, "cpu", 0, "`number` of processors (default: the provider's)")
	fl.Var(size{&f.o.Memory}, "memory", "`size` of its memory, as 512MiB (default: the provider's)")
	fl.Var(size{&f.o.Disk}, "disk", "`size` of what it may write, as 2GiB (default: the provider's)")
	fl.StringVar(&f.o.Network, "network", "", "`what` it may reach: none, loopback, host, all, or a list of host[:port],*.suffix,CIDR (default: the provider's)")
	fl.StringArrayVarP(&f.env, "env", "e", nil, "`KEY=VALUE` for everything inside; KEY alone takes the value from here; repeatable")
	fl.StringArrayVarP(&f.metadata, "metadata", "m", nil, "`KEY=VALUE` that is kept with it and seen in lists; repeatable")
}

// addSource adds the options of what a sandbox is made from.
func (f *createFlags) addSource(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVarP(&f.o.Template, "template", "T", "", "`name` of a template (default: as settings say, else the provider's)")
	fl.StringVar(&f.o.Image, "image", "", "`reference` of an OCI image in place of a template")
	fl.StringVar(&f.o.Snapshot, "snapshot", "", "`id` of a snapshot in place of a template")
	fl.StringArrayVar(&f.volumes, "volume", nil, "`NAME:/PATH[:ro]`: storage that outlives it; repeatable")
	fl.StringVarP(&f.o.User, "user", "u", "", "`name` of the default user (default: the provider's)")
	fl.StringVarP(&f.o.WorkDir, "workdir", "w", "", "`directory` of commands (default: the user's home)")
	fl.StringVar(&f.o.Isolation, "isolation", "", "`what` must stand between it and the host: container or gvisor (default: the provider's)")
	fl.StringArrayVar(&f.o.Require, "require", nil, "`name` of a protection that must be in force; repeatable")
}

// options are the options, checked as far as the library does not.
func (f *createFlags) options(cmd *cobra.Command) (o sandboxfn.CreateOptions, err error) {
	o = f.o
	if o.Env, err = parsePairs(cmd, "env", f.env, true); err != nil {
		return o, err
	}
	if o.Metadata, err = parsePairs(cmd, "metadata", f.metadata, false); err != nil {
		return o, err
	}
	for _, text := range f.volumes {
		v, err := parseVolume(cmd, text)
		if err != nil {
			return o, err
		}
		o.Volumes = append(o.Volumes, v)
	}
	return o, nil
}

func (a *app) createCommand() *cobra.Command {
	var f createFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "create",
		Short: "make a sandbox and print its id",
		Long: `Create makes a sandbox and prints its id. It lives until its lifetime ends or
"sandbox kill". With --detached=false it ends with this command, which then
stays until it is interrupted or the sandbox has ended.`,
		Example: `  id=$(sandbox create)
  sandbox create --network pypi.org,files.pythonhosted.org --detached=false
  sandbox create --memory 1GiB --lifetime 2h --metadata job=42 --env TOKEN`,
		Args: arguments(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := f.options(cmd)
			if err != nil {
				return err
			}
			return a.create(cmd.Context(), &o, asJSON)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f.addSource(cmd)
	f.add(cmd)
	cmd.Flags().BoolVarP(&f.o.Detached, "detached", "d", true, "let it live on when this command ends")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (a *app) create(ctx context.Context, o *sandboxfn.CreateOptions, asJSON bool) error {
	c, err := a.open()
	if err != nil {
		return err
	}
	done := a.progress("creating a sandbox")
	sb, err := c.Create(ctx, o)
	done()
	if err != nil {
		return a.withBuild(o.Template, err)
	}
	if err := a.printCreated(ctx, sb, asJSON); err != nil { // nobody knows its id
		return joinClose(err, func() error { return sb.Kill(context.WithoutCancel(ctx)) })
	}
	if o.Detached {
		return nil
	}
	return a.attend(ctx, sb)
}

func (a *app) printCreated(ctx context.Context, sb *sandboxfn.Sandbox, asJSON bool) error {
	if !asJSON {
		_, err := fmt.Fprintln(a.stdout, sb.ID())
		return err
	}
	info, err := sb.Info(ctx)
	if err != nil {
		return err
	}
	return a.printJSON(sandboxOf(info))
}

// attendEvery is how often it is asked whether an attached sandbox still lives.
const attendEvery = 2 * time.Second

// attend stays until the sandbox has ended or ctx does. Closing the client ends
// the sandbox.
func (a *app) attend(ctx context.Context, sb *sandboxfn.Sandbox) error {
	tick := time.NewTicker(attendEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
			if _, err := sb.Info(ctx); ctx.Err() == nil && err != nil {
				return err
			}
		}
	}
}
