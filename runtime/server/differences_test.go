//go:build linux

package server

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// place is one exchange of one recording.
type place struct {
	scenario string
	exchange int
}

// difference is one way in which we are not envd 0.6.13.
type difference struct {
	name string   // a heading in docs/protocol.md
	in   []string // parts of the answer that differ
	at   []place
}

// differences is the list that docs/protocol.md explains.
var differences = []difference{
	{
		name: "`/files` is not compressed without need",
		in:   []string{"header Accept-Ranges", "header Content-Encoding", "header Last-Modified", "header Content-Type"},
		at: slices.Concat(
			at("files-get-gzip", 0, 1, 8), at("files-get", 15),
			at("sdk231-files-octet-gzip-metadata", 4, 5), at("sdk251-files-octet-gzip-metadata", 4, 5),
			at("sdk231-files", 4, 5, 7), at("sdk251-files", 4, 5, 7), at("sdk231-secured", 4), at("sdk251-secured", 4),
		),
	},
	{
		name: "files of /proc are read to their end",
		in:   []string{"status", "body", "header Accept-Ranges", "header Last-Modified"},
		at:   at("files-get", 11, 16),
	},
	{
		name: "devices, FIFOs and sockets are not files",
		in:   []string{"status", "body", "header Accept-Ranges", "header Content-Disposition", "header Content-Type", "header Last-Modified"},
		at:   at("files-get", 14),
	},
	{
		name: "files are touched with the rights of the user",
		in:   []string{"status", "body", "header Accept-Ranges", "header Content-Disposition", "header Content-Type", "header Last-Modified"},
		at:   at("fs-permission-denied", 0, 1, 2, 3, 4, 5, 6, 8),
	},
	{
		name: "Connect begins with buffered output",
		in:   []string{"output stdout"},
		at: slices.Concat(
			at("process-client-gone", 2), at("process-connect-ended", 1, 2), at("process-connect-running", 1, 4),
			at("sdk231-commands-background", 3), at("sdk251-commands-background", 3),
		),
	},
	{
		name: "the end of a process is kept for 60 s",
		in:   []string{"start", "output stdout", "end"},
		at:   at("process-connect-ended", 8),
	},
	{
		name: "programs are executed directly",
		in:   []string{"output stderr"},
		at:   slices.Concat(at("process-unknown-program", 0, 1, 2, 3), at("rpc-malformed-envelope", 8)),
	},
	{
		name: "codes of broken requests are those of the RPC library",
		in:   []string{"end/error/code"},
		at:   slices.Concat(at("process-timeout", 6), at("rpc-malformed-envelope", 1, 2, 3)),
	},
	{
		name: "`DELETE /files` removes",
		in:   []string{"status", "body", "header Allow", "header Content-Type"},
		at:   at("files-get", 13),
	},
	{
		name: "no cross-origin requests",
		in:   []string{"status", "body", "header Allow"},
		at:   at("http-health-metrics-envs", 7),
	},
}

func at(scenario string, exchanges ...int) []place {
	var out []place
	for _, e := range exchanges {
		out = append(out, place{scenario, e})
	}
	return out
}

func differenceAt(at place) *difference {
	for i := range differences {
		if slices.Contains(differences[i].at, at) {
			return &differences[i]
		}
	}
	return nil
}

// TestDifferencesAreDocumented keeps the list and docs/protocol.md together.
func TestDifferencesAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range differences {
		if !strings.Contains(string(doc), "| "+d.name+" |") {
			t.Errorf("docs/protocol.md has no row %q", d.name)
		}
	}
}
