package media // want package:"fills .., needs ..time zones media.when time.LoadLocation.."

import "time"

//sandbox:func
func when(zone string) error { return deeper(zone) }

func deeper(zone string) error {
	_, err := time.LoadLocation(zone)
	return err
}
