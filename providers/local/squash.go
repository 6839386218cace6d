//go:build linux

package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"

	"github.com/agent-sandbox/sandbox-go/internal/layertar"
)

// squash makes one layer that shows what all of layers show, the uppermost first;
// top is the first of them when that has no name yet. Files are shared and not
// copied. The caller owns the result.
func (t *tree) squash(ctx context.Context, top *layer, layers []string) (_ *layer, name string, err error) {
	sum := sha256.New()
	var dirs []*os.File
	for i, n := range layers {
		fmt.Fprintln(sum, "layer", n)
		if i == 0 && top != nil {
			dirs = append(dirs, top.dir.f)
			continue
		}
		d, err := t.layers.sub(n)
		if err != nil {
			return nil, "", err
		}
		defer d.close()
		dirs = append(dirs, d.f)
	}
	out, err := t.beginLayer(ctx)
	if err != nil {
		return nil, "", err
	}
	if err = layertar.Merge(ctx, out.dir.f, dirs); err == nil {
		err = out.sync()
	}
	if err != nil {
		out.discard()
		return nil, "", err
	}
	return out, hex.EncodeToString(sum.Sum(nil)), nil
}
