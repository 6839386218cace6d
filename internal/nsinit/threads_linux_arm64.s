#include "textflag.h"

// func handlerAddr() uintptr
TEXT ·handlerAddr(SB),NOSPLIT,$0-8
	MOVD $threadHandler<>(SB), R0
	MOVD R0, ret+0(FP)
	RET

// func restorerAddr() uintptr
TEXT ·restorerAddr(SB),NOSPLIT,$0-8
	MOVD $restorer<>(SB), R0
	MOVD R0, ret+0(FP)
	RET

// func loadDone() uint32
TEXT ·loadDone(SB),NOSPLIT,$0-4
	MOVD  $·batchDone(SB), R1
	LDARW (R1), R0
	MOVW  R0, ret+0(FP)
	RET

// threadHandler is a signal handler. It is entered with the C calling
// convention, on a stack that may not be Go's; sigreturn restores every
// register. It makes the calls of batch.
TEXT threadHandler<>(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	MOVD ·batch(SB), R19
	MOVD ·batchLen(SB), R20
next:
	CBZ  R20, done
	MOVD 0(R19), R8
	MOVD 8(R19), R0
	MOVD 16(R19), R1
	MOVD 24(R19), R2
	MOVD 32(R19), R3
	MOVD 40(R19), R4
	MOVD 48(R19), R5
	SVC
	CMN  $4095, R0
	BCC  ok
	NEG  R0, R0
	MOVD R0, ·batchErrno(SB)
	MOVD R20, ·batchIndex(SB)
ok:
	ADD  $56, R19
	SUB  $1, R20
	B    next
done:
	MOVD $·batchDone(SB), R1
again:
	LDAXRW (R1), R0
	ADDW   $1, R0
	STLXRW R0, (R1), R2
	CBNZ   R2, again
	RET

// func filterAddr() uintptr
TEXT ·filterAddr(SB),NOSPLIT,$0-8
	MOVD $faultFilter<>(SB), R0
	MOVD R0, ret+0(FP)
	RET

// faultFilter is a signal handler: it passes on what the kernel says of a fault
// and drops what a process has sent, for which si_code is not positive.
TEXT faultFilter<>(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	MOVW 8(R1), R9
	CMPW $0, R9
	BLE  drop
	MOVD ·goHandler(SB), R9
	JMP  (R9)
drop:
	RET

TEXT restorer<>(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	MOVD $139, R8 // rt_sigreturn
	SVC
	BRK
