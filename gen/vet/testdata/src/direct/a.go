package direct

import "context"

// describe has the shape of its wrapper.
//
//sandbox:func
func describe(ctx context.Context, s string) (int, error) { return helper(ctx, s) }

//sandbox:func as=Look
func double(n int) int { return 2 * n }

// Exported is called by another package.
//
//sandbox:func
func Exported(ctx context.Context) error { return nil }

// helper runs in a sandbox.
func helper(ctx context.Context, s string) (int, error) { return double(len(s)), nil }

func caller(ctx context.Context) {
	describe(ctx, "x")                    // want `describe is called itself, so it runs here and not in a sandbox; call Describe, or DescribeFunc.Local to say that it is meant`
	_ = double(2)                         // want `double is called itself, so it runs here and not in a sandbox; call Look, or LookFunc.Local`
	func() { _, _ = describe(ctx, "") }() // want `describe is called itself`
	plain()
}

func plain() {}

// both chooses.
func both(ctx context.Context, local bool) (int, error) {
	if local {
		return describe(ctx, "x")
	}
	return Describe(ctx, "x")
}

func wanted(ctx context.Context) (int, error) { return DescribeFunc.Local(ctx, "x") }

// value only names it.
var value = describe
