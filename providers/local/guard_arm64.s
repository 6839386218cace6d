#include "textflag.h"

// func cloneGuard(flags, stack uintptr) (tid uintptr)
TEXT ·cloneGuard(SB),NOSPLIT,$0-24
	MOVD flags+0(FP), R0
	MOVD stack+8(FP), R1
	MOVD ZR, R2
	MOVD ZR, R3
	MOVD ZR, R4
	MOVD $220, R8 // clone
	SVC
	CBZ  R0, child
	MOVD R0, tid+16(FP)
	RET
child:
	// On the new stack. Nothing returns from here.
	BL   ·guardMain(SB)
	BRK
