package direct

import "testing"

func TestDescribe(t *testing.T) { describe(t.Context(), "x") }
