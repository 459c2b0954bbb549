package backends

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// pairs is the number of functions in the test program. Each function has its own caller.
const pairs = 500

// stack is a stack of samples in a backend's answer: functions from the leaf, or "" for a frame without a function.
type stack struct {
	functions []string
	value     int64
}

// The functions of the program have names such as pair_function_007, and their callers pair_caller_007.
const functionName, callerName = "pair_function_", "pair_caller_"

var pairName = regexp.MustCompile(`^(?:main\.)?` + functionName + `([0-9]{3})$`)

// callerPosition is the position of the nth function's caller among the callers in the file. It differs from n and n+1. So no
// pair is correct if every name belongs to a neighbour.
func callerPosition(n int) int { return n * 7 % pairs }

// judged is the result of judging the program's pairs.
type judged struct {
	seen, right int   // the numbers of all functions and of right functions
	inRight     int64 // the samples in a function that is called by its own caller
	all         int64 // the samples of the program
}

// judgePairs looks up the direct caller of each function. Function and caller get their names from two addresses that only the
// call connects. A function counts as correct if more than half of its samples have the correct caller. The other samples come
// from its first and last instructions. There, the frame pointer is not set up, so the unwinder skips the caller.
func judgePairs(stacks []stack) judged {
	var inFunction, underCaller [pairs]int64
	var result judged
	for _, s := range stacks {
		result.all += s.value
		for i, f := range s.functions {
			found := pairName.FindStringSubmatch(f)
			if found == nil {
				continue
			}
			n, err := strconv.Atoi(found[1])
			if err != nil || n >= pairs {
				continue
			}
			inFunction[n] += s.value
			if i+1 < len(s.functions) && strings.TrimPrefix(s.functions[i+1], "main.") == callerName+found[1] {
				underCaller[n] += s.value
				result.inRight += s.value
			}
			break // the program never has one of its functions above another
		}
	}
	for n := range pairs {
		if inFunction[n] > 0 {
			result.seen++
		}
		if 2*underCaller[n] > inFunction[n] {
			result.right++
		}
	}
	return result
}

// shifted gives each function the name of the next function in a list, like a server with an off-by-one error.
func shifted(stacks []stack, order []string) []stack {
	next := map[string]string{}
	for i := range len(order) - 1 {
		next[order[i]] = order[i+1]
	}
	var wrong []stack
	for _, s := range stacks {
		one := stack{value: s.value}
		for _, f := range s.functions {
			if n, ok := next[f]; ok {
				f = n
			}
			one.functions = append(one.functions, f)
		}
		wrong = append(wrong, one)
	}
	return wrong
}

// truePairs is the answer of a server with correct names.
func truePairs(prefix string) []stack {
	var stacks []stack
	for n := range pairs {
		stacks = append(stacks, stack{[]string{
			fmt.Sprintf("%s%s%03d", prefix, functionName, n), fmt.Sprintf("%s%s%03d", prefix, callerName, n), prefix + "main",
		}, 20})
	}
	return stacks
}

// TestJudgePairs distinguishes right names from a neighbour's names.
func TestJudgePairs(t *testing.T) {
	for _, prefix := range []string{"", "main."} {
		right := truePairs(prefix)
		require.Equal(t, judged{pairs, pairs, 20 * pairs, 20 * pairs}, judgePairs(right))

		functions, callers := make([]string, pairs), make([]string, pairs)
		for n := range pairs {
			functions[n] = fmt.Sprintf("%s%s%03d", prefix, functionName, n)
			callers[callerPosition(n)] = fmt.Sprintf("%s%s%03d", prefix, callerName, n)
		}
		order := slices.Concat(functions, callers)
		require.NotContains(t, order, "", "each caller has its own position")
		wrong := judgePairs(shifted(right, order))
		require.Zero(t, wrong.right, "names of the next functions")
		require.Zero(t, wrong.inRight)
		require.GreaterOrEqual(t, wrong.seen, pairs-1)

		kernel := stack{append([]string{"irq_exit_rcu", "sysvec_apic_timer_interrupt"}, right[0].functions...), 1}
		skipped := stack{[]string{right[1].functions[0], prefix + "main"}, 5} // its caller is not in the stack
		require.Equal(t, judged{pairs, pairs, 20*pairs + 1, 20*pairs + 6}, judgePairs(append(right, kernel, skipped)))
	}
	require.Zero(t, judgePairs([]stack{{[]string{"", "", ""}, 20}, {nil, 3}, {[]string{functionName + "999"}, 1}}).seen)
}
