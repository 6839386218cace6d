#include "textflag.h"

// func cloneGuard(flags, stack uintptr) (tid uintptr)
TEXT ·cloneGuard(SB),NOSPLIT,$0-24
	MOVQ flags+0(FP), DI
	MOVQ stack+8(FP), SI
	XORQ DX, DX
	XORQ R10, R10
	XORQ R8, R8
	MOVQ $56, AX // clone
	SYSCALL
	TESTQ AX, AX
	JZ   child
	MOVQ AX, tid+16(FP)
	RET
child:
	// On the new stack. Nothing returns from here.
	CALL ·guardMain(SB)
	INT  $3
