// Package systemd gets the local provider control groups from systemd. A blank
// import is all there is to do:
//
//	import _ "github.com/agent-sandbox/sandbox-go/providers/local/systemd"
//
// A user's program mostly runs in a control group that belongs to root, and then
// memory, processes and processor time of sandboxes can only be watched. Where
// the provider finds that to be so, this package asks the user's service manager,
// over D-Bus, for a scope with Delegate=yes and this process in it, as systemd-run
// --user --scope does. The program moves into it with its threads; what it had
// started before stays where it was. Where there is no systemd, nothing changes but
// the reason in the reports of sandboxes.
package systemd
