package tune

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
)

// These are the gadgets' filters for processes.
const (
	pidFlag      = "pid"
	alsoPIDsFlag = "also-pids"
)

// maxAlsoPIDs is the maximum length of --also-pids in bytes. See also_pids in gadgets/include/process.h.
const maxAlsoPIDs = 63

// PID returns the user's value of --pid. 0 means any process.
func PID(gadgetCtx operators.GadgetContext) (uint32, error) { return Number(gadgetCtx, pidFlag, 0) }

// Number returns the user's value for a flag of a gadget's eBPF programs, or unset for an empty value and for -1.
func Number(gadgetCtx operators.GadgetContext, flag string, unset uint32) (uint32, error) {
	text := Flag(gadgetCtx, flag)
	if text == "" || text == "-1" {
		return unset, nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return unset, fmt.Errorf("parameter %q: got %q, expected a number", flag, text)
	}
	return uint32(n), nil
}

// AlsoPIDs returns the PIDs in the user's value of --also-pids. The gadgets' programs only read digits, so an invalid value must
// not reach them.
func AlsoPIDs(gadgetCtx operators.GadgetContext) (pids []uint32, err error) {
	text := Flag(gadgetCtx, alsoPIDsFlag)
	if text == "" {
		return nil, nil
	}
	if len(text) > maxAlsoPIDs {
		return nil, fmt.Errorf("parameter %q: got %d characters, expected at most %d", alsoPIDsFlag, len(text), maxAlsoPIDs)
	}
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(word), 10, 31)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("parameter %q: got %q, expected PIDs such as 12,34", alsoPIDsFlag, text)
		}
		pids = append(pids, uint32(n))
	}
	if first, err := PID(gadgetCtx); err != nil || first == 0 {
		return nil, errors.Join(err, fmt.Errorf("--%s needs --%s: set --%s to the first PID", alsoPIDsFlag, pidFlag, pidFlag))
	}
	return pids, nil
}
