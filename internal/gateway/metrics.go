package gateway

// samples are kept measurements of one sandbox.
type samples struct{}
