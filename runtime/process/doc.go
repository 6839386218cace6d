// Package process serves the envd service process.Process: it starts commands,
// carries their input and output and ends them. [New] makes the service; a
// server mounts it behind its own authentication.
//
// A command is its whole tree: a kill reaches every process that descends from
// it, also those that left its session or lost their parent (see [Service.SendSignal]).
// Its end is the end of its first process; what that one leaves running lives on.
package process
