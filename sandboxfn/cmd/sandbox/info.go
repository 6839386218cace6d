package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

// infoJSON is what info prints.
type infoJSON struct {
	sandboxJSON
	Isolation *sandboxfn.Report `json:"isolation,omitempty"`
	Usage     *usageJSON        `json:"usage,omitempty"`
}

type usageJSON struct {
	CPUPercent       float64 `json:"cpu_percent"`
	MemoryBytes      int64   `json:"memory_bytes"`
	MemoryCacheBytes int64   `json:"memory_cache_bytes"`
	DiskBytes        int64   `json:"disk_bytes"`
}

func (a *app) infoCommand() *cobra.Command {
	var isolation, used, asJSON bool
	cmd := &cobra.Command{
		Use:   "info ID",
		Short: "describe a sandbox",
		Long: `Info describes a sandbox and leaves it as it is: one that is paused stays so.
Only one that runs can say how it is isolated, and what it uses.`,
		Args: arguments(1, 1, "the id of a sandbox"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.open()
			if err != nil {
				return err
			}
			info, err := c.Inspect(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			out := infoJSON{sandboxJSON: sandboxOf(info)}
			if (isolation || used) && info.State != "running" {
				return &sandboxfn.Error{Code: "E2024", Op: "describe sandbox", Message: "it is " + string(info.State) + "; only one that runs has --protection and --usage"}
			}
			if isolation || used {
				if err := a.look(cmd.Context(), &out, isolation, used); err != nil {
					return err
				}
			}
			if asJSON {
				return a.printJSON(out)
			}
			return a.printFields(infoFields(info, &out))
		},
		ValidArgsFunction: a.completeSandbox,
	}
	cmd.Flags().BoolVar(&isolation, "protection", false, "say how it is isolated, and what could not be enforced")
	cmd.Flags().BoolVar(&used, "usage", false, "say what it uses now")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// look asks the sandbox itself.
func (a *app) look(ctx context.Context, out *infoJSON, isolation, used bool) error {
	sb, err := a.connect(ctx, out.ID)
	if err != nil {
		return err
	}
	if isolation {
		if out.Isolation, err = sb.Report(ctx); err != nil {
			return err
		}
	}
	if used {
		m, err := sb.Metrics(ctx)
		if err != nil {
			return err
		}
		out.Usage = &usageJSON{m.CPUPercent, int64(m.MemoryUsed), int64(m.MemoryCache), int64(m.DiskUsed)}
	}
	return nil
}

func infoFields(i *sandboxfn.Info, out *infoJSON) [][2]string {
	when := func(t time.Time, words string) string {
		if t.IsZero() {
			return ""
		}
		return t.UTC().Format(time.RFC3339) + " (" + words + ")"
	}
	fields := [][2]string{
		{"id", i.ID}, {"provider", i.Provider}, {"template", i.Template}, {"state", string(i.State)},
		{"created", when(i.CreatedAt, ago(i.CreatedAt))}, {"ends", when(i.ExpiresAt, ahead(i.ExpiresAt))},
		{"metadata", pairs(i.Metadata)}, {"cpu", positive(i.CPU)}, {"memory", bytesText(i.Memory)}, {"disk", bytesText(i.Disk)},
		{"processes", positive(float64(i.Processes))}, {"runtime", i.RuntimeVersion},
	}
	if r := out.Isolation; r != nil {
		fields = append(fields, [][2]string{
			{"engine", r.Engine}, {"users", r.UserNS}, {"root", r.Root}, {"network", r.Network},
			{"seccomp", strconv.Itoa(r.Seccomp) + " instructions"}, {"landlock", r.Landlock},
		}...)
		for _, k := range slices.Sorted(maps.Keys(r.Limits)) {
			fields = append(fields, [2]string{"limit of " + k, r.Limits[k]})
		}
		for _, d := range r.Degraded {
			fields = append(fields, [2]string{"not enforced", d.What + ": " + d.Why + " (hint: " + d.Remedy + ")"})
		}
	}
	if u := out.Usage; u != nil {
		fields = append(fields, [][2]string{
			{"cpu used", fmt.Sprintf("%.0f%% of a processor", u.CPUPercent)},
			{"memory used", sandboxfn.Bytes(u.MemoryBytes).String()},
			{"disk used", sandboxfn.Bytes(u.DiskBytes).String()},
		}...)
	}
	return fields
}

// positive is a number, or nothing for one that is not known.
func positive(v float64) string {
	if v <= 0 {
		return ""
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

func bytesText(b sandboxfn.Bytes) string {
	if b <= 0 {
		return ""
	}
	return b.String()
}
