//go:build !race

// Each of these tests types a part of the standard library from source, which
// takes many times as long under the race detector; the checks start no
// goroutines.

package vet

import (
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"
)

func TestDirect(t *testing.T) {
	analysistest.RunWithSuggestedFixes(t, analysistest.TestData(), direct, "direct", "directuse")
}

func TestGlobals(t *testing.T) { analysistest.Run(t, analysistest.TestData(), globals, "globals") }

func TestHostOnly(t *testing.T) { analysistest.Run(t, analysistest.TestData(), hostOnly, "hostonly") }

func TestLostCall(t *testing.T) { analysistest.Run(t, analysistest.TestData(), lostCall, "lostcall") }

func TestCapture(t *testing.T) { analysistest.Run(t, analysistest.TestData(), capture, "capture") }

func TestBlankImport(t *testing.T) {
	analysistest.Run(t, analysistest.TestData(), blankImport, "blank/media", "blank/ok", "blank/main", "blank/withmain")
}
