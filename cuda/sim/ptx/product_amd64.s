#include "textflag.h"

// func product(c *[16][8]float32, a *[16][16]float32, b *[16][8]float32, k int)
//
// SSE, which every amd64 has. Two rows of c at a time: X0 and X1, X2 and X3.
TEXT ·product(SB), NOSPLIT, $0-32
	MOVQ c+0(FP), DI
	MOVQ a+8(FP), SI
	MOVQ b+16(FP), DX
	MOVQ k+24(FP), CX
	MOVQ $8, R8

rows:
	MOVUPS (DI), X0
	MOVUPS 16(DI), X1
	MOVUPS 32(DI), X2
	MOVUPS 48(DI), X3
	MOVQ   SI, R9
	MOVQ   DX, R10
	MOVQ   CX, R11

step:
	MOVUPS (R10), X4
	MOVUPS 16(R10), X5
	MOVSS  (R9), X6
	SHUFPS $0, X6, X6
	MOVSS  64(R9), X7
	SHUFPS $0, X7, X7
	MOVAPS X4, X8
	MOVAPS X5, X9
	MULPS  X6, X4
	MULPS  X6, X5
	MULPS  X7, X8
	MULPS  X7, X9
	ADDPS  X4, X0
	ADDPS  X5, X1
	ADDPS  X8, X2
	ADDPS  X9, X3
	ADDQ   $4, R9
	ADDQ   $32, R10
	DECQ   R11
	JNZ    step

	MOVUPS X0, (DI)
	MOVUPS X1, 16(DI)
	MOVUPS X2, 32(DI)
	MOVUPS X3, 48(DI)
	ADDQ   $64, DI
	ADDQ   $128, SI
	DECQ   R8
	JNZ    rows
	RET
