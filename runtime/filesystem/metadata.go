//go:build linux

package filesystem

import (
	"fmt"
	"net/http"
	"strings"

	"golang.org/x/sys/unix"
)

// Metadata of a file is kept in its extended attributes, as envd does.
const (
	metadataAttr   = "user.e2b."
	metadataHeader = "X-Metadata-"

	maxMetadataKey = 246 // with the prefix the kernel's limit for a name, xattr(7)
	maxMetadata    = 4096
	maxAttrList    = 64 << 10 // the kernel's limit for the list of names
)

// metadataFrom reads the metadata of an upload from its headers.
func metadataFrom(h http.Header) (map[string]string, error) {
	var meta map[string]string
	total := 0
	for name, values := range h {
		key, ok := strings.CutPrefix(name, metadataHeader)
		if !ok {
			continue
		}
		key = strings.ToLower(key)
		value := strings.Join(values, ", ")
		switch total += len(key) + len(value); {
		case key == "":
			return nil, fmt.Errorf("metadata key is empty")
		case len(key) > maxMetadataKey:
			return nil, fmt.Errorf("metadata key %q exceeds %d bytes", key, maxMetadataKey)
		case total > maxMetadata:
			return nil, fmt.Errorf("metadata exceeds %d bytes", maxMetadata)
		}
		for i := range len(value) {
			if value[i] < ' ' || value[i] > '~' {
				return nil, fmt.Errorf("metadata value for key %q contains non-printable-ASCII byte %#x at offset %d", key, value[i], i)
			}
		}
		if meta == nil {
			meta = map[string]string{}
		}
		meta[key] = value
	}
	return meta, nil
}

// writeMetadata makes meta the whole metadata of the open file fd.
func writeMetadata(fd int, meta map[string]string) error {
	for key := range readMetadataNames(func(b []byte) (int, error) { return unix.Flistxattr(fd, b) }) {
		if _, keep := meta[key]; !keep {
			if err := unix.Fremovexattr(fd, metadataAttr+key); err != nil && err != unix.ENODATA {
				return err
			}
		}
	}
	for key, value := range meta {
		if err := unix.Fsetxattr(fd, metadataAttr+key, []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}

// readMetadata reads the metadata of the file at p, which is no link. A file
// system without attributes has none.
func readMetadata(p string) map[string]string {
	var meta map[string]string
	buf := make([]byte, maxMetadata)
	for key := range readMetadataNames(func(b []byte) (int, error) { return unix.Llistxattr(p, b) }) {
		n, err := unix.Lgetxattr(p, metadataAttr+key, buf)
		if err != nil {
			continue
		}
		if meta == nil {
			meta = map[string]string{}
		}
		meta[key] = text(string(buf[:n]))
	}
	return meta
}

// readMetadataNames lists the keys that list finds.
func readMetadataNames(list func([]byte) (int, error)) map[string]bool {
	// Nearly all files have no attributes at all: ask for the size first.
	n, err := list(nil)
	if err != nil || n == 0 || n > maxAttrList {
		return nil
	}
	buf := make([]byte, n)
	if n, err = list(buf); err != nil {
		return nil
	}
	keys := map[string]bool{}
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if key, ok := strings.CutPrefix(name, metadataAttr); ok {
			keys[text(key)] = true
		}
	}
	return keys
}
