// Package envelope encodes calls and their results: [Request] and [Response]
// around values whose encoding a [Codec] has worked out from their Go type.
//
// The encoding is CBOR (RFC 8949) with definite lengths. Arguments are an array
// by position, structs are maps by field name (the name in a sandbox, cbor or
// json tag, in this order, or the field's own), integers are as short as they
// can be, floats keep their width and every bit. Nothing is left out because it
// is empty, whatever a tag says: nil, zero and empty stay three things. A
// pointer to something that can itself be nil is an array of one element.
//
// Runs of at least [SegmentMin] bytes are not copied into the body: a reference
// (tag [tagSegment]) stands for them, and they travel beside it as they are.
//
// Why this does not call the encoder of fxamacker/cbor for whole values: it
// honours omitempty, cannot keep runs of bytes apart, tells no path when it
// refuses, and overflows the stack on a cycle. It checks the output of types
// that encode themselves as CBOR, and the tests read everything back with it.
package envelope
