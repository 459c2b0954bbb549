package unwinder

import "strconv"

// reasons are why the profiler gives up a stack before its end, by the codes of its tools/errors-codegen/errors.json (v0.0.202633). Those
// that are not here are only numbers.
var reasons = map[uint32]string{
	2:    "deeper than the unwinder goes",
	3:    "empty",
	5:    "deeper than the kernel lets it go",
	1000: "Java: no code blob",
	1002: "Java: no return address",
	1005: "Java: the process is not known yet",
	2001: "Python: the process is not known yet",
	3000: "Ruby: the process is not known yet",
	4000: "a place outside all known code",
	4001: "a file without unwind information",
	4002: "a file whose unwind information was dropped",
	4004: "a place without unwind information",
	4005: "unwind information that cannot be followed",
	4007: "a stack that could not be read",
	4012: "the process is not known yet",
	4013: "a jump to address 0",
	4014: "a jump to an address near 0",
	4017: "a 32-bit program",
	4018: "code in a mapping that cannot be unwound",
	4019: "a place that is not mapped",
	4020: "a place that is not executable",
	5002: "Node.js: the process is not known yet",
	6000: ".NET: the process is not known yet",
	7000: "BEAM: the process is not known yet",
	8000: "LuaJIT: the process is not known yet",
}

// Reason says in words why a stack is not complete.
func Reason(code uint32) string {
	if r := reasons[code]; r != "" {
		return r
	}
	return "reason " + strconv.FormatUint(uint64(code), 10)
}
