package main

import (
	"image"
	"image/color"
)

// average is the mean colour of the pixels of area.
func average(src image.Image, area image.Rectangle) color.RGBA64 {
	var r, g, b, a, n uint64
	for y := area.Min.Y; y < max(area.Max.Y, area.Min.Y+1); y++ {
		for x := area.Min.X; x < max(area.Max.X, area.Min.X+1); x++ {
			pr, pg, pb, pa := src.At(x, y).RGBA()
			r, g, b, a, n = r+uint64(pr), g+uint64(pg), b+uint64(pb), a+uint64(pa), n+1
		}
	}
	return color.RGBA64{uint16(r / n), uint16(g / n), uint16(b / n), uint16(a / n)}
}
