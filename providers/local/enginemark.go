//go:build linux

package local

import (
	"context"
	"errors"
	"strings"
)

// markLabel is a label of all that a daemon makes for the steps of a build. Its value
// is random, and no step sees it: what a step prints does not choose what is removed.
const markLabel = "sandbox.build"

func (r *engineRun) markStep() string { return "LABEL " + markLabel + "=" + r.mark }

// addMarks adds a step to each stage of a Dockerfile, behind its FROM, and counts
// them. Where it is not certain what begins a stage, there is one less.
func addMarks(dockerfile, step string) (text string, added int) {
	var out strings.Builder
	continues, from := false, false
	for line := range strings.Lines(dockerfile) {
		out.WriteString(line)
		trimmed := strings.TrimSpace(line)
		if comment, ok := strings.CutPrefix(trimmed, "#"); ok || trimmed == "" { // between the lines of a step too
			name, value, _ := strings.Cut(comment, "=")
			if strings.EqualFold(strings.TrimSpace(name), "syntax") && !strings.Contains(value, "docker/dockerfile") {
				return dockerfile, 0 // another language
			}
			continue
		}
		if !continues {
			from = strings.EqualFold(strings.Fields(trimmed)[0], "FROM")
		}
		continues = strings.HasSuffix(trimmed, `\`) || strings.HasSuffix(trimmed, "`") // whichever of them it is here
		// After the first stage, a line may be one of a file that is in the Dockerfile.
		if from && !continues && (added == 0 || !strings.Contains(dockerfile, "<<")) {
			if !strings.HasSuffix(line, "\n") {
				out.WriteByte('\n')
			}
			out.WriteString(step + "\n")
			added++
		}
	}
	return out.String(), added
}

// marked lists what the daemon has with the mark: docker's ps or images.
func (r *engineRun) marked(ctx context.Context, what string) ([]string, error) {
	out, err := engineCommand(ctx, r.path, r.env, what, "--all", "--quiet", "--no-trunc", "--filter", "label="+markLabel+"="+r.mark).Output()
	return strings.Fields(string(out)), err
}

// cleanDaemon removes containers and images of the build. The daemon ends the step
// itself when nobody listens any more, which may take it a while.
func (r *engineRun) cleanDaemon(ctx context.Context) error {
	containers, err := r.marked(ctx, "ps")
	errs := []error{err}
	for _, id := range containers {
		errs = append(errs, absentIsFine(r.tool(ctx, r.path, "rm", "--force", "--volumes", id)))
	}
	// Without pruning: what they are made from may be an image of the user without a name.
	errs = append(errs, r.removeImage(ctx, "rmi", "--no-prune"))
	for { // one that another is made from goes after it
		images, err := r.marked(ctx, "images")
		var kept []error
		for _, id := range images {
			if err := absentIsFine(r.tool(ctx, r.path, "rmi", "--no-prune", id)); err != nil {
				kept = append(kept, err)
			}
		}
		if err != nil || len(kept) == 0 || len(kept) == len(images) || ctx.Err() != nil {
			return errors.Join(append(append(errs, err), kept...)...)
		}
	}
}
