// Package code runs cells of code in contexts that keep their state: one process
// of the language's own interpreter for each context, started and limited like
// every other process of the sandbox. Start at [New]; [Service.Handler] serves
// the API that clients of E2B's code interpreter speak, [Service.Endpoints] the
// rows of the runtime's own HTTP API.
//
// It is no notebook server: there are no kernels of Jupyter, no widgets and no
// standard input.
package code
