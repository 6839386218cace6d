package templates

import (
	"path"
	"slices"
	"strings"
)

// endpoints are the names that the switches of a template know, as the runtime has
// them; a test compares. Agents are in some runtimes only.
var endpoints = strings.Fields(`
	commands.list commands.run
	core.capabilities core.health core.openapi
	dev_tools.code_contexts dev_tools.code_create dev_tools.code_remove dev_tools.code_restart dev_tools.code_run
	dev_tools.git_diff dev_tools.git_status
	file_ops.archive file_ops.download file_ops.list file_ops.mkdir file_ops.move file_ops.remove file_ops.search file_ops.stat
	file_ops.upload file_ops.watch
	functions.call
	ports.connect
	process.connect process.exec process.exec_stream process.get process.input process.list process.shell
	process.shell_stream process.signal process.start
	system.env_read system.env_write system.info system.metrics system.packages system.ports
	terminal.attach terminal.close terminal.connect terminal.input terminal.list terminal.open terminal.resize terminal.signal`)

// Endpoints are the names of single endpoints that server.enable and server.disable
// can switch, sorted. The caller owns the list.
func Endpoints() []string { return slices.Clone(endpoints) }

// meansEndpoint reports whether a name in a list of switches means something: an
// endpoint, a group, or those that a pattern with stars matches.
func meansEndpoint(name string) bool {
	group, _, single := strings.Cut(name, ".")
	if group == "agents" || !single && slices.Contains(groups, group) {
		return true
	}
	return slices.ContainsFunc(endpoints, func(e string) bool {
		ok, err := path.Match(name, e) // names have no slash, so a star is any text
		return ok && err == nil
	})
}
