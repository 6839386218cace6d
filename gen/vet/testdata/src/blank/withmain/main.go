package main // want package:"time zones"

import (
	_ "blank/media"
	_ "time/tzdata"

	"github.com/agent-sandbox/sandbox-go/sandboxfn"
)

func main() { sandboxfn.Main() }
