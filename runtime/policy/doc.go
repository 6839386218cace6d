// Package policy decides what a sandbox lets its clients do: which endpoints
// answer, which files are reached, which programs are started. A template says
// it; [Compile] checks what it says, and the services of the runtime ask before
// they act, whatever protocol the question came by.
//
// The rules are about what clients ask the runtime for. A program that was
// started does what its user may do: that is for the provider to limit.
package policy
