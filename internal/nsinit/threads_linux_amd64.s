#include "textflag.h"

// func handlerAddr() uintptr
TEXT ·handlerAddr(SB),NOSPLIT,$0-8
	LEAQ threadHandler<>(SB), AX
	MOVQ AX, ret+0(FP)
	RET

// func restorerAddr() uintptr
TEXT ·restorerAddr(SB),NOSPLIT,$0-8
	LEAQ restorer<>(SB), AX
	MOVQ AX, ret+0(FP)
	RET

// func loadDone() uint32
TEXT ·loadDone(SB),NOSPLIT,$0-4
	MOVL ·batchDone(SB), AX
	MOVL AX, ret+0(FP)
	RET

// threadHandler is a signal handler. It is entered with the C calling
// convention, on a stack that may not be Go's; sigreturn restores every
// register. It makes the calls of batch.
TEXT threadHandler<>(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	MOVQ ·batch(SB), BX
	MOVQ ·batchLen(SB), R12
next:
	TESTQ R12, R12
	JZ    done
	MOVQ  0(BX), AX
	MOVQ  8(BX), DI
	MOVQ  16(BX), SI
	MOVQ  24(BX), DX
	MOVQ  32(BX), R10
	MOVQ  40(BX), R8
	MOVQ  48(BX), R9
	SYSCALL
	CMPQ  AX, $-4095
	JCS   ok
	NEGQ  AX
	MOVQ  AX, ·batchErrno(SB)
	MOVQ  R12, ·batchIndex(SB)
ok:
	ADDQ  $56, BX
	DECQ  R12
	JMP   next
done:
	MOVL  $1, AX
	LOCK
	XADDL AX, ·batchDone(SB)
	RET

// func filterAddr() uintptr
TEXT ·filterAddr(SB),NOSPLIT,$0-8
	LEAQ faultFilter<>(SB), AX
	MOVQ AX, ret+0(FP)
	RET

// faultFilter is a signal handler: it passes on what the kernel says of a fault
// and drops what a process has sent, for which si_code is not positive.
TEXT faultFilter<>(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	CMPL 8(SI), $0
	JLE  drop
	MOVQ ·goHandler(SB), AX
	JMP  AX
drop:
	RET

TEXT restorer<>(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	MOVQ $15, AX // rt_sigreturn
	SYSCALL
	INT  $3
