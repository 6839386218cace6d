package lostcall

import "context"

//sandbox:func
func tail(s string) func(func(string, error) bool) { return nil }

func use(ctx context.Context) {
	AddFunc.Spawn(ctx, 1)    // want `the result of Spawn is dropped, so nobody sees whether the call failed`
	go AddFunc.Spawn(ctx, 1) // want `the result of Spawn is dropped`
	_ = AddFunc.Spawn(ctx, 1)
	call := AddFunc.Spawn(ctx, 1)
	call.Wait(ctx)
	TailFunc.Stream(ctx, "x") // want `Stream does nothing until its result is ranged over`
	Tail(ctx, "x")            // want `Tail does nothing until its result is ranged over`
	_ = Tail(ctx, "x")        // want `Tail does nothing until its result is ranged over`
	AddFunc.Map(ctx, nil)     // want `Map does nothing until its result is ranged over`
	for range Tail(ctx, "x") {
	}
	seq := Tail(ctx, "x")
	seq(nil)
	Other(ctx)
}
