// Package templates reads the files in which people say what a sandbox is made
// from and what it offers, and finds them: in folders, in git repositories, in
// archives, in registries and in a catalog.
//
// [Parse] and [Load] read a file and a folder, [Resolve] finds a template by the
// name that a user writes and joins it with those it is based on, [Image] makes one
// in Go, and [Dockerfile] writes what an engine builds. All give the types of
// package model, which is what everything else in this module reads. Docs:
// docs/templates.md.
package templates
