#include "textflag.h"

// func emulated()
TEXT ·emulated(SB), NOSPLIT|NOFRAME, $0-0
	PUSHQ BP
	POPQ BP
	RET

// func stepped()
TEXT ·stepped(SB), NOSPLIT|NOFRAME, $0-0
	TESTQ DI, DI
	RET

DATA ·emulatedPC+0(SB)/8, $·emulated(SB)
GLOBL ·emulatedPC(SB), RODATA, $8
DATA ·steppedPC+0(SB)/8, $·stepped(SB)
GLOBL ·steppedPC(SB), RODATA, $8
