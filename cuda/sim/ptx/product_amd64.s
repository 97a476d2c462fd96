#include "textflag.h"

// func product(x *fragments, k int)
//
// SSE, which every amd64 has. Rows g and g+8 of c at a time: X0 and X1 are the
// even and the odd columns of the one, X2 and X3 of the other. Registers of the
// lanes are read in place: the pointers of a are at 0(DI), of c at 32(DI), of d at
// 64(DI); b is at 96(DI).
TEXT ·product(SB), NOSPLIT, $0-16
	MOVQ   x+0(FP), DI
	MOVQ   k+8(FP), CX
	MOVL   $0xffff0000, AX
	MOVQ   AX, X14
	SHUFPS $0, X14, X14
	MOVL   $0x7fffffff, AX
	MOVQ   AX, X15
	SHUFPS $0, X15, X15
	XORQ   R8, R8               // 16g: four lanes of four bytes

rows:
	MOVQ   32(DI), R9
	MOVUPS (R9)(R8*1), X0
	MOVQ   40(DI), R9
	MOVUPS (R9)(R8*1), X1
	MOVQ   48(DI), R9
	MOVUPS (R9)(R8*1), X2
	MOVQ   56(DI), R9
	MOVUPS (R9)(R8*1), X3
	MOVQ   0(DI), SI
	MOVQ   8(DI), DX
	LEAQ   96(DI), R10
	MOVQ   CX, R11

eight:
	MOVQ R8, R13
	MOVQ $4, R12

pair:                               // two columns of a, two rows of b
	MOVSS  (SI)(R13*1), X6
	MOVSS  (DX)(R13*1), X7
	SHUFPS $0, X6, X6
	SHUFPS $0, X7, X7
	MOVAPS X6, X12
	MOVAPS X7, X13
	PSLLL  $16, X6
	PSLLL  $16, X7
	ANDPS  X14, X12
	ANDPS  X14, X13

	MOVUPS 0(R10), X4
	MOVUPS 16(R10), X5
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

	MOVUPS 32(R10), X4
	MOVUPS 48(R10), X5
	MOVAPS X4, X8
	MOVAPS X5, X9
	MULPS  X12, X4
	MULPS  X12, X5
	MULPS  X13, X8
	MULPS  X13, X9
	ADDPS  X4, X0
	ADDPS  X5, X1
	ADDPS  X8, X2
	ADDPS  X9, X3

	ADDQ $64, R10
	ADDQ $4, R13
	DECQ R12
	JNZ  pair

	MOVQ 16(DI), SI
	MOVQ 24(DI), DX
	SUBQ $8, R11
	JNZ  eight

	// What is no number gets its one form.
	MOVQ   64(DI), R9
	MOVAPS X0, X4
	CMPPS  X0, X4, $3
	MOVAPS X4, X5
	ANDPS  X15, X5
	ANDNPS X0, X4
	ORPS   X5, X4
	MOVUPS X4, (R9)(R8*1)

	MOVQ   72(DI), R9
	MOVAPS X1, X4
	CMPPS  X1, X4, $3
	MOVAPS X4, X5
	ANDPS  X15, X5
	ANDNPS X1, X4
	ORPS   X5, X4
	MOVUPS X4, (R9)(R8*1)

	MOVQ   80(DI), R9
	MOVAPS X2, X4
	CMPPS  X2, X4, $3
	MOVAPS X4, X5
	ANDPS  X15, X5
	ANDNPS X2, X4
	ORPS   X5, X4
	MOVUPS X4, (R9)(R8*1)

	MOVQ   88(DI), R9
	MOVAPS X3, X4
	CMPPS  X3, X4, $3
	MOVAPS X4, X5
	ANDPS  X15, X5
	ANDNPS X3, X4
	ORPS   X5, X4
	MOVUPS X4, (R9)(R8*1)

	ADDQ $16, R8
	CMPQ R8, $128
	JNE  rows
	RET
