//go:build linux

package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
)

// squash makes one layer that shows what all of layers show, the uppermost first;
// top is the first of them when that has no name yet. Files are shared and not
// copied. The caller owns the result.
func (t *tree) squash(ctx context.Context, top *layer, layers []string) (_ *layer, name string, err error) {
	sum := sha256.New()
	from := slices.Clone(layers)
	if top != nil {
		from[0] = top.name
	}
	for _, n := range layers {
		fmt.Fprintln(sum, "layer", n)
	}
	out, err := t.beginLayer(ctx)
	if err != nil {
		return nil, "", err
	}
	if _, err = (treeWork{Op: workMerge, Name: out.name, From: from}).run(ctx, t.layers, nil); err == nil {
		err = out.sync()
	}
	if err != nil {
		out.discard()
		return nil, "", err
	}
	return out, hex.EncodeToString(sum.Sum(nil)), nil
}
