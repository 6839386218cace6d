package main // want package:"time zones"

import (
	_ "blank/media"
	"blank/ok"
	_ "time/tzdata" // want `media.when calls time.LoadLocation in a sandbox, where only its own package and what that imports is initialised: import time/tzdata there too, or begin main with sandboxfn.Main\(\)`
)

func main() { ok.Use() }
