// Command imagesafe makes a thumbnail of an image of unknown origin. The
// decoders, which have to read what a stranger wrote, run in a sandbox.
//
//sandbox:package network=none memory=512MiB timeout=20s
package main

import (
	"bytes"
	"context"
	"fmt"
	"image"
	_ "image/gif" // decoders belong to the package of the function: main does not run in a sandbox
	_ "image/jpeg"
	"image/png"

	"github.com/agent-sandbox/sandbox-go/examples/declarative/internal/where"
)

//go:generate go tool sandboxgen

// maxPixels bounds what is decoded, so that a small file that claims to be a
// huge picture is refused before it is unpacked.
const maxPixels = 16_000_000

// Thumbnail is a shrunken picture.
type Thumbnail struct {
	PNG           []byte
	Format        string // of the original: "jpeg", "png" or "gif"
	Width, Height int    // of the thumbnail, in pixels
	From          image.Point
}

// TooLargeError says that a picture has too many pixels to decode.
type TooLargeError struct{ Width, Height int }

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("picture of %d × %d pixels is too large; at most %d pixels are decoded", e.Width, e.Height, maxPixels)
}

// shrink decodes a picture and scales it down so that neither side is longer
// than max pixels.
//
//sandbox:func
//sandbox:with check.data=min=1 check.max=min=1,max=4096
func shrink(ctx context.Context, data []byte, max int) (*Thumbnail, error) {
	header, format, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("read header: %w", err)
	}
	if header.Width*header.Height > maxPixels {
		return nil, &TooLargeError{header.Width, header.Height}
	}
	src, _, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", format, err)
	}
	small, err := scale(ctx, src, max)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := png.Encode(&out, small); err != nil {
		return nil, err
	}
	return &Thumbnail{
		PNG: out.Bytes(), Format: format,
		Width: small.Bounds().Dx(), Height: small.Bounds().Dy(), From: src.Bounds().Size(),
	}, nil
}

// whereAmI tells where functions of this package run.
//
//sandbox:func as=WhereItRuns
func whereAmI() (where.Place, error) { return where.Here() }

// scale averages the pixels of src that fall on each pixel of the result.
func scale(ctx context.Context, src image.Image, limit int) (*image.RGBA64, error) {
	from := src.Bounds()
	longest := max(from.Dx(), from.Dy())
	if longest == 0 {
		return nil, fmt.Errorf("picture without pixels: %w", image.ErrFormat)
	}
	limit = min(limit, longest)
	dst := image.NewRGBA64(image.Rect(0, 0, max(1, from.Dx()*limit/longest), max(1, from.Dy()*limit/longest)))
	to := dst.Bounds()
	for y := range to.Dy() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for x := range to.Dx() {
			area := image.Rect(
				from.Min.X+x*from.Dx()/to.Dx(), from.Min.Y+y*from.Dy()/to.Dy(),
				from.Min.X+(x+1)*from.Dx()/to.Dx(), from.Min.Y+(y+1)*from.Dy()/to.Dy())
			dst.Set(x, y, average(src, area))
		}
	}
	return dst, nil
}
