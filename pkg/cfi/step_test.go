package cfi

import (
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// oneFunction is a table of one function of amd64 at 0x401000.
func oneFunction(t testing.TB, instructions ...byte) *Table {
	t.Helper()
	return amd64Example(exampleFunction{0x401000, 0x1000, instructions}).read(t)
}

func registersAt(sp, ip uint64) Registers {
	var r Registers
	r.Set(7, sp)
	r.Set(16, ip)
	return r
}

// The caller has what the function has saved, what functions keep, and nothing else.
func TestStep(t *testing.T) {
	table := oneFunction(t, cfaDefCFAOffset, 24, cfaOffset|3, 3, cfaOffset|6, 2)
	regs := registersAt(0x7000, 0x401010)
	regs.Set(0, 11)
	regs.Set(3, 12)
	regs.Set(12, 13)
	regs.Set(13, 0) // r14 is not known
	require.Equal(t, Caller, table.Step(0x401010, &regs, stackOf(0x7000, 1, 2, 0x402000)))
	require.EqualValues(t, 0x402000, regs.IP())
	require.EqualValues(t, 0x7018, regs.SP())
	require.EqualValues(t, 2, regs.FP())
	for n, want := range map[int]uint64{3: 1, 6: 2, 12: 13, 13: 0, 7: 0x7018, 16: 0x402000} {
		v, known := regs.Get(n)
		require.True(t, known, "%d", n)
		require.Equal(t, want, v, "%d", n)
	}
	for _, n := range []int{0, 1, 2, 4, 5, 8, 14, 15, 17, 33, -1} {
		_, known := regs.Get(n)
		require.False(t, known, "%d", n)
	}
}

// Whatever ends a walk leaves the registers as they were.
func TestResults(t *testing.T) {
	good := stackOf(0x7000, 0x402000, 1, 2, 3)
	for name, x := range map[string]struct {
		program []byte
		address uint64
		stack   Stack
		want    Result
	}{
		"caller":           {nil, 0x401000, good, Caller},
		"outermost":        {[]byte{cfaUndefined, 16}, 0x401000, good, Outermost},
		"zero":             {nil, 0x401000, stackOf(0x7000, 0), Outermost},
		"before":           {nil, 0x400fff, good, NoRule},
		"behind":           {nil, 0x402000, good, NoRule},
		"out of the copy":  {[]byte{cfaDefCFAOffset, 0x80, 0x80, 1}, 0x401000, good, OutOfCopy},
		"empty copy":       {nil, 0x401000, Stack{}, OutOfCopy},
		"short copy":       {nil, 0x401000, Stack{Base: 0x7000, Bytes: make([]byte, 7)}, OutOfCopy},
		"unknown register": {[]byte{cfaDefCFARegister, 6}, 0x401000, good, Bad},
		"no such register": {[]byte{cfaDefCFARegister, 17}, 0x401000, good, Bad},
		"no growth":        {[]byte{cfaDefCFAOffset, 0, cfaValOffset, 16, 1}, 0x401000, good, Bad},
		"down":             {[]byte{cfaDefCFASF, 7, 1, cfaValOffset, 16, 1}, 0x401000, good, Bad},
		"no instruction":   {[]byte{0x3f}, 0x401000, good, Bad},
		"cut off":          {[]byte{cfaDefCFAExpression, 100}, 0x401000, good, Bad},
		"nothing to pop":   {[]byte{cfaRestoreState}, 0x401000, good, Bad},
		"window":           {[]byte{cfaNegateRAState}, 0x401000, good, Bad},
		"same address":     {[]byte{cfaSameValue, 16}, 0x401000, good, Caller},
		"same, no growth":  {[]byte{cfaSameValue, 16, cfaDefCFAOffset, 0}, 0x401000, good, Bad},
	} {
		t.Run(name, func(t *testing.T) {
			table := oneFunction(t, x.program...)
			regs := registersAt(0x7000, x.address)
			before := regs
			require.Equal(t, x.want, table.Step(x.address, &regs, x.stack))
			require.Equal(t, x.want == Caller, before != regs)
			require.Equal(t, x.want, table.Step(x.address, &before, x.stack), "the second time")
		})
	}
}

// Instructions, one after the other, and what they have come to at the end.
func TestInstructions(t *testing.T) {
	for want, instructions := range map[string][]byte{
		"cfa=rsp+8 ra=c-8":                     {cfaNop, cfaGNUArgsSize, 0x80, 1},
		"cfa=rbp+16 ra=c-8":                    {cfaDefCFA, 6, 16},
		"cfa=rbp+32 ra=c-8":                    {cfaDefCFASF, 6, 0x7c},
		"cfa=rsp+24 ra=c-8":                    {cfaDefCFAOffsetSF, 0x7d},
		"cfa=exp ra=c-8":                       {cfaDefCFAExpression, 1, opLit0},
		"cfa=rsp+8 rbx=c+16 ra=c-8":            {cfaOffsetExtendedSF, 3, 0x7e},
		"cfa=rsp+8 rbx=c-16 ra=c-8":            {cfaOffsetExtended, 3, 2},
		"cfa=rsp+8 rbx=c+24 ra=c-8":            {cfaGNUNegOffsetExtended, 3, 3},
		"cfa=rsp+8 rbx=v-16 ra=c-8":            {cfaValOffset, 3, 2},
		"cfa=rsp+8 rbx=v+8 ra=c-8":             {cfaValOffsetSF, 3, 0x7f},
		"cfa=rsp+8 rbx=rcx ra=c-8":             {cfaRegister, 3, 2},
		"cfa=rsp+8 rbx=u ra=c-8":               {cfaUndefined, 3},
		"cfa=rsp+8 rbp=u ra=c-8":               {cfaRegister, 6, 40},
		"cfa=rsp+8 rbx=s ra=c-8":               {cfaSameValue, 3},
		"cfa=rsp+8 rbx=exp ra=c-8":             {cfaExpression, 3, 1, opLit0},
		"cfa=rsp+8 rbx=vexp ra=c-8":            {cfaValExpression, 3, 1, opLit0},
		"cfa=rsp+8 ra=c-8 ":                    {cfaOffset | 20, 3, cfaOffset | 3, 3, cfaRestore | 3},
		"cfa=rsp+8 ra=c-8  ":                   {cfaOffset | 3, 3, cfaRestoreExtended, 3, cfaRestoreExtended, 90},
		"cfa=rsp+8 rax=s ra=c-8":               {cfaSameValue, 0, cfaOffset | 16, 5, cfaRestore | 16},
		"cfa=rsp+8 r12=c-24 ra=c-8":            {cfaOffset | 12, 3, cfaRememberState, cfaOffset | 3, 1, cfaDefCFA, 6, 2, cfaRestoreState},
		"cfa=rsp+8 r12=c-24 r13=c-32 ra=c-8":   {cfaAdvanceLoc1, 10, cfaOffset | 12, 3, cfaAdvanceLoc2, 10, 0, cfaOffset | 13, 4, cfaAdvanceLoc4, 100, 0, 0, 0, cfaUndefined, 12},
		"cfa=rsp+8 r12=c-24 r14=c-32 ra=c-8":   {cfaAdvanceLoc | 20, cfaOffset | 12, 3, cfaAdvanceLoc, cfaOffset | 14, 4, cfaMIPSAdvanceLoc8, 1, 0, 0, 0, 0, 0, 0, 0, cfaUndefined, 12},
		"cfa=rsp+8 rbx=c-8 rbp=c-8 ra=c-8":     {cfaOffset | 3, 1, cfaOffset | 6, 1},
		"cfa=rsp+8 rbp=c-8 r15=c-1024 ra=c-8 ": {cfaOffset | 6, 1, cfaOffset | 15, 0x80, 1},
	} {
		for want[len(want)-1] == ' ' { // which makes keys that differ
			want = want[:len(want)-1]
		}
		require.Equal(t, want, oneFunction(t, instructions...).Describe(0x401014), "%#x", instructions)
	}
}

// Programs of rules.
func TestExpressions(t *testing.T) {
	stack := stackOf(0x7000, 0x402000, 0x1122334455667788)
	loop := []byte{opLit0 + 1, opSkip, 0xfd, 0xff}
	for name, x := range map[string]struct {
		code []byte
		want uint64
		why  Result
	}{
		"literal":      {[]byte{opLit31}, 31, Caller},
		"register":     {[]byte{opBreg0 + 7, 0x78}, 0x6ff8, Caller},
		"bregx":        {[]byte{opBregx, 7, 8}, 0x7008, Caller},
		"constants":    {[]byte{opConst1s, 0xff, opConst2u, 2, 1, opPlus, opConst4s, 0xff, 0xff, 0xff, 0xff, opMul, opNeg}, 0x101, Caller},
		"more":         {[]byte{opConst1u, 9, opConst2s, 0xff, 0xff, opXor, opConst4u, 1, 0, 0, 0, opOr, opConst8u, 255, 0, 0, 0, 0, 0, 0, 0, opAnd, opConstu, 1, opConsts, 0x7f, opPlus, opPlus}, 0xf7, Caller},
		"memory":       {[]byte{opBreg0 + 7, 8, opDeref}, 0x1122334455667788, Caller},
		"one byte":     {[]byte{opBreg0 + 7, 9, opDerefSize, 1}, 0x77, Caller},
		"two bytes":    {[]byte{opBreg0 + 7, 9, opDerefSize, 2}, 0x6677, Caller},
		"four bytes":   {[]byte{opBreg0 + 7, 12, opDerefSize, 4}, 0x11223344, Caller},
		"shifts":       {[]byte{opConst1s, 0xf0, opLit0 + 2, opShra, opConst1u, 60, opShr, opLit0 + 4, opShl}, 0xf0, Caller},
		"shift by 64":  {[]byte{opLit0 + 1, opConst1u, 64, opShl}, 0, Caller},
		"stack":        {[]byte{opLit0 + 1, opLit0 + 2, opLit0 + 3, opRot, opSwap, opOver, opDrop, opDup, opPick, 2, opMinus, opPlus, opShl}, 2, Caller},
		"rot":          {[]byte{opLit0 + 1, opLit0 + 2, opLit0 + 3, opRot, opMinus, opMinus}, 4, Caller},
		"swap":         {[]byte{opLit0 + 1, opLit0 + 4, opSwap, opMinus}, 3, Caller},
		"over":         {[]byte{opLit0 + 9, opLit0 + 4, opOver, opMinus, opNot}, 4, Caller},
		"abs":          {[]byte{opConst1s, 0xfb, opAbs, opNop}, 5, Caller},
		"add":          {[]byte{opLit0 + 1, opPlusUconst, 0x80, 1}, 129, Caller},
		"compare":      {[]byte{opConst1s, 0xff, opLit0, opLt, opLit0 + 1, opEq, opLit0, opNe, opLit0, opGt, opLit0 + 1, opGe, opLit0, opLe}, 0, Caller},
		"branch":       {[]byte{opLit0 + 1, opLit0 + 1, opBra, 1, 0, opLit31, opLit0 + 5, opPlus}, 6, Caller},
		"no branch":    {[]byte{opLit0, opBra, 1, 0, opLit31}, 31, Caller},
		"skip to end":  {[]byte{opLit0 + 4, opSkip, 1, 0, opLit31}, 4, Caller},
		"loop":         {loop, 0, Bad},
		"deaf loop":    {[]byte{opSkip, 0xfd, 0xff}, 0, Bad},
		"before":       {[]byte{opSkip, 0, 0x80}, 0, Bad},
		"empty":        {nil, 0, Bad},
		"too deep":     {slices.Repeat([]byte{opLit31}, maxDepth+1), 0, Bad},
		"just fits":    {slices.Repeat([]byte{opLit31}, maxDepth), 31, Caller},
		"just ends":    {slices.Repeat([]byte{opLit31, opDrop}, maxOperations/2), 0, Bad},
		"too long":     {append(slices.Repeat([]byte{opNop}, maxOperations), opLit0), 0, Bad},
		"long":         {append(slices.Repeat([]byte{opNop}, maxOperations-1), opLit0), 0, Caller},
		"underflow":    {[]byte{opPlus}, 0, Bad},
		"pick nothing": {[]byte{opLit0, opPick, 200}, 0, Bad},
		"unknown":      {[]byte{opBreg0, 0}, 0, Bad},
		"no register":  {[]byte{opBregx, 100, 0}, 0, Bad},
		"division":     {[]byte{opLit0, opLit0, 0x1b}, 0, Bad},
		"modulo":       {[]byte{opLit0, opLit0, 0x1d}, 0, Bad},
		"address":      {[]byte{0x03, 0, 0, 0, 0, 0, 0, 0, 0}, 0, Bad},
		"cut off":      {[]byte{opConst4u, 1}, 0, Bad},
		"elsewhere":    {[]byte{opLit0, opDeref}, 0, OutOfCopy},
		"odd size":     {[]byte{opBreg0 + 7, 0, opDerefSize, 3}, 0, Bad},
	} {
		t.Run(name, func(t *testing.T) {
			table := &Table{arch: archAMD64, frames: x.code}
			regs := registersAt(0x7000, 0x401000)
			v, why := table.evaluate(span{0, uint32(len(x.code))}, &regs, stack)
			require.Equal(t, x.why, why)
			if why == Caller {
				require.Equal(t, x.want, v)
			}
		})
	}
}

// GNU's linker has one rule for all stubs: half of each has pushed a number.
func TestStubExpression(t *testing.T) {
	table := oneFunction(t, cfaDefCFAExpression, 11, opBreg0+7, 8, opBreg0+16, 0, opLit0+15, opAnd, opLit0+11, opGe, opLit0+3, opShl, opPlus)
	for ip, want := range map[uint64]uint64{0x401010: 0x7008, 0x40101a: 0x7008, 0x40101b: 0x7010, 0x40101f: 0x7010} {
		regs := registersAt(0x7000, ip)
		require.Equal(t, Caller, table.Step(ip, &regs, stackOf(0x7000, 0x402000, 0x403000)))
		require.Equal(t, want, regs.SP(), "%#x", ip)
	}
}

// The kernel's frame of a signal: all registers are in memory, and the stack may be another one.
func TestSignalFrame(t *testing.T) {
	e := amd64Example(exampleFunction{0x401000, 16, program(
		[]byte{cfaDefCFAExpression, 3, opBreg0 + 7, 16, opDeref},
		[]byte{cfaExpression, 7, 2, opBreg0 + 7, 16, cfaExpression, 16, 2, opBreg0 + 7, 0, cfaExpression, 0, 2, opBreg0 + 7, 8},
	)})
	e.augmentation = "zRS"
	table := e.read(t)
	require.True(t, table.Signal(0x401000))
	require.False(t, table.Signal(0x402000))
	require.False(t, oneFunction(t).Signal(0x401000))
	regs := registersAt(0x7000, 0x401000)
	require.Equal(t, Caller, table.Step(0x401000, &regs, stackOf(0x7000, 0x402000, 77, 0x6000)))
	require.EqualValues(t, 0x402000, regs.IP())
	require.EqualValues(t, 0x6000, regs.SP())
	rax, known := regs.Get(0)
	require.True(t, known)
	require.EqualValues(t, 77, rax)
}

// Among its last instructions a function has popped registers, while its rules still lead to where they were.
func TestPopped(t *testing.T) {
	table := oneFunction(t, cfaDefCFAOffset, 8, cfaOffset|3, 2)
	regs := registersAt(0x7008, 0x401000)
	regs.Set(3, 42)
	below := regs
	require.Equal(t, Caller, table.Step(0x401000, &regs, stackOf(0x7008, 0x402000)))
	v, known := regs.Get(3)
	require.True(t, known)
	require.EqualValues(t, 42, v)
	require.Equal(t, Caller, table.Step(0x401000, &below, stackOf(0x7000, 43, 0x402000)))
	v, _ = below.Get(3)
	require.EqualValues(t, 43, v, "memory is better where it is in the copy")
	// Above the stack pointer nothing is guessed.
	table = oneFunction(t, cfaDefCFAOffset, 16, cfaOffset|3, 0, cfaOffset|16, 2)
	regs = registersAt(0x7008, 0x401000)
	regs.Set(3, 42)
	require.Equal(t, Caller, table.Step(0x401000, &regs, stackOf(0x7008, 0x402000, 0)))
	_, known = regs.Get(3)
	require.False(t, known)
}

// arm64 has its return address in x30, which may be signed, until the function calls another one.
func TestARM64(t *testing.T) {
	table := arm64Example(
		exampleFunction{0x401000, 0x20, nil},
		exampleFunction{0x401020, 0x20, []byte{cfaNegateRAState, cfaDefCFAOffset, 32, cfaOffset | 29, 4, cfaOffset | 30, 3, cfaOffset | 40, 1}},
		exampleFunction{0x401040, 0x20, []byte{cfaUndefined, 30}},
	).read(t)
	var regs Registers
	regs.Set(31, 0x7000)
	regs.Set(30, 0x00ff_0000_0040_1030)
	regs.Set(29, 5)
	stack := stackOf(0x7000, 0x7100, 0x401050)
	require.Equal(t, Caller, table.Step(0x401004, &regs, stack))
	require.EqualValues(t, 0x401030, regs.Value[32])
	require.EqualValues(t, 0x7000, regs.Value[31])
	again := regs
	require.Equal(t, Bad, table.Step(0x401004, &again, stack), "it has called, so x30 is not its own any more")
	require.Equal(t, Caller, table.Step(0x40102f, &regs, stack))
	require.EqualValues(t, 0x401050, regs.Value[32])
	require.EqualValues(t, 0x7020, regs.Value[31])
	require.EqualValues(t, 0x7100, regs.Value[29])
	_, known := regs.Get(30)
	require.False(t, known, "the call has overwritten it")
	require.Equal(t, Outermost, table.Step(0x40104f, &regs, stack))
}

// The kernel's frame of a signal on arm64, which has no rules.
func TestSignalFrameARM64(t *testing.T) {
	b := arm64Example(twoFunctions[1]).bytes()
	copy(b[0x900:], sigreturnCode)
	table, err := readBytes(b, Limits{})
	require.NoError(t, err)
	const handlerReturnsTo = exampleAddr + 0x900
	require.True(t, table.Signal(handlerReturnsTo-1))
	require.True(t, table.Signal(handlerReturnsTo+4))
	require.False(t, table.Signal(handlerReturnsTo+8))
	words := make([]uint64, 80)
	for i := range 33 {
		words[39+i] = 0x9000 + uint64(i)
	}
	var regs Registers
	regs.Set(31, 0xa000)
	regs.Set(32, handlerReturnsTo)
	require.Equal(t, Caller, table.Step(handlerReturnsTo-1, &regs, stackOf(0xa000, words...)))
	for i := range 33 {
		v, known := regs.Get(i)
		require.True(t, known)
		require.EqualValues(t, 0x9000+i, v)
	}
}

// Stubs have no rules of their own, and the return address on top, until one pushes a number.
func TestStubs(t *testing.T) {
	jump := append(slices.Clone(amd64Jump), 0, 0, 0, 0)
	lazy := slices.Concat(jump, make([]byte, 10))
	first := slices.Concat(amd64First, make([]byte, 14))
	for name, x := range map[string]struct {
		arch  *arch
		begin []byte
		want  map[uint64]string
	}{
		"of a static program": {archAMD64, slices.Repeat(slices.Concat(jump, make([]byte, 2)), 4), map[uint64]string{0x500000: "cfa=rsp+8 ra=c-8", 0x50000c: "cfa=rsp+8 ra=c-8", 0x500100: ""}},
		"bound late":          {archAMD64, slices.Concat(first, lazy), map[uint64]string{0x500000: "", 0x500010: "cfa=rsp+8 ra=c-8", 0x50001b: "cfa=rsp+16 ra=c-8"}},
		"no first":            {archAMD64, slices.Concat(lazy, lazy), map[uint64]string{0x500000: "cfa=rsp+8 ra=c-8", 0x50000b: "cfa=rsp+16 ra=c-8"}},
		"unknown":             {archAMD64, make([]byte, 32), map[uint64]string{0x500000: ""}},
		"arm64":               {archARM64, slices.Concat(arm64BTI, arm64First, make([]byte, 24)), map[uint64]string{0x500000: "", 0x500020: "cfa=sp+0", 0x500100: ""}},
	} {
		table := &Table{arch: x.arch, recent: make([]atomic.Pointer[row], 1)}
		if s, ok := stubsOf(x.arch.machine, area{addr: 0x500000, size: 0x100}, x.begin); ok {
			table.stubs = append(table.stubs, s)
		}
		for address, want := range x.want {
			require.Equal(t, want, table.Describe(address), "%s %#x", name, address)
		}
	}
}

// The frame pointer leads to the caller's, up to where it does not grow.
func TestFramePointer(t *testing.T) {
	stack := stackOf(0x7000, 0, 0x7020, 0x402000, 0, 0x7010, 0x403000, 0, 0)
	var regs Registers
	regs.Set(7, 0x7000)
	regs.Set(6, 0x7008)
	regs.Set(3, 1)
	require.Equal(t, Caller, archAMD64.framePointer(&regs, stack))
	require.EqualValues(t, []uint64{0x402000, 0x7018, 0x7020}, []uint64{regs.Value[16], regs.Value[7], regs.Value[6]})
	_, known := regs.Get(3)
	require.False(t, known)
	require.Equal(t, Caller, archAMD64.framePointer(&regs, stack))
	require.Equal(t, Bad, archAMD64.framePointer(&regs, stack), "it leads back")
	for fp, want := range map[uint64]Result{0: Outermost, 0x7001: Bad, 0x6ff8: Bad, 0x7030: Outermost, 0x7038: OutOfCopy, 0x9000: OutOfCopy} {
		var regs Registers
		regs.Set(7, 0x7000)
		regs.Set(6, fp)
		require.Equal(t, want, archAMD64.framePointer(&regs, stack), "%#x", fp)
	}
	require.Equal(t, Bad, archAMD64.framePointer(&Registers{}, stack))
	var arm Registers
	arm.Set(29, 0x7008)
	require.Equal(t, Caller, archARM64.framePointer(&arm, stack))
	_, known = arm.Get(31)
	require.False(t, known, "where the frame ends is not known")
}

// A program of a rule that is as long as it may be ends, and so does one that remembers too much.
func TestLongPrograms(t *testing.T) {
	long := slices.Repeat([]byte{cfaRememberState, cfaRestoreState}, maxInstructions/(2+rememberCost)-10)
	require.Equal(t, "cfa=rsp+8 ra=c-8", oneFunction(t, long...).Describe(0x401000))
	require.Empty(t, oneFunction(t, append(long, long...)...).Describe(0x401000))
	require.Empty(t, oneFunction(t, slices.Repeat([]byte{cfaRememberState}, maxRemembered+1)...).Describe(0x401000))
}
