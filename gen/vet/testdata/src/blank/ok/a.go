package ok // want package:"fills .*time zones.*, needs .."

import (
	"time"

	_ "time/tzdata"
)

//sandbox:func
func when(zone string) error {
	_, err := time.LoadLocation(zone)
	return err
}

func Use() {}
