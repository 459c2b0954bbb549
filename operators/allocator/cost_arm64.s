#include "textflag.h"

// func emulated()
TEXT ·emulated(SB), NOSPLIT|NOFRAME, $0-0
	B next
next:
	RET

// func stepped()
TEXT ·stepped(SB), NOSPLIT|NOFRAME, $0-0
	MOVD R0, R0
	RET

DATA ·emulatedPC+0(SB)/8, $·emulated(SB)
GLOBL ·emulatedPC(SB), RODATA, $8
DATA ·steppedPC+0(SB)/8, $·stepped(SB)
GLOBL ·steppedPC(SB), RODATA, $8
