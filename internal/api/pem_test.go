package api

import (
	"encoding/pem"
	"os"
	"testing"
)

func writePEM(t *testing.T, path string, cert []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600); err != nil {
		t.Fatal(err)
	}
}
