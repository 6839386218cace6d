package directuse

import (
	"context"

	"direct"
)

func use(ctx context.Context) error {
	if _, err := direct.Look(ctx, 1); err != nil {
		return err
	}
	return direct.Exported(ctx) // want `Exported is called itself, so it runs here and not in a sandbox; call ExportedRemote`
}
