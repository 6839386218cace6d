package api

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPlaces(t *testing.T) {
	for _, want := range [][]string{nil, {"/data/planets.csv"}, {"/models/", "/a,b", "/100%", "/ü \n", "/q?x#y"}} {
		header := joinPlaces(want)
		for _, r := range header {
			if r < '!' || r > '~' {
				t.Errorf("%q: %q in the header %q", want, r, header)
			}
		}
		got, err := SplitPlaces(header)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q as %q: %v\n%s", want, header, err, diff)
		}
	}
	if _, err := SplitPlaces("/%zz"); err == nil {
		t.Error("no error for what is not percent-encoded")
	}
}
