package otelprofiles

import (
	"fmt"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
)

// enoughRows is how many rows without a stack are more than chance.
const enoughRows = 5

// bare reports whether nearly all rows of closed windows are without a stack.
func (c Counts) bare() bool { return c.nearly(profile.NoStack) }

// nearly reports whether nearly all rows of closed windows have that fate.
func (c Counts) nearly(fate profile.Fate) bool {
	return c.Fates[fate] > 0 && 20*c.Fates[fate] >= 19*c.closed()
}

// closed is how many rows there were in closed windows.
func (c Counts) closed() (n int64) {
	for _, rows := range c.Fates {
		n += rows
	}
	return n
}

// absent says how many rows are without a stack, and why as far as that is known.
func (p *pipeline) absent(c Counts) string {
	var why []string
	for reason, n := range p.plan.Stats().Absences {
		if n == 0 {
			continue
		}
		switch stack.Absence(reason) {
		case stack.NotCollected:
			if off := p.inst.uncollected; len(off) > 0 {
				why = append(why, "the gadget does not collect them without "+strings.Join(off, " and "))
			} else {
				why = append(why, "the gadget has taken none")
			}
		case stack.NoRoom:
			why = append(why, "its stack map is too small for them: let it watch fewer programs")
		case stack.Gone:
			why = append(why, "they were gone from its stack map when they were read")
		case stack.Refused:
			why = append(why, "the kernel could not take them")
		case stack.NoneThere:
			why = append(why, "there were none to take, as in threads of the kernel, or, of the kernel's stacks, while a program ran")
		case stack.NoText:
			why = append(why, "the fields with their text are empty")
		}
	}
	text := fmt.Sprintf("%d of %d rows so far are without any stack", c.Fates[profile.NoStack], c.closed())
	if len(why) > 0 {
		text += ": " + strings.Join(why, "; ")
	}
	return text
}

// reportStacks warns where nearly all stacks are missing or cut.
func (p *pipeline) reportStacks(c Counts) {
	switch {
	case c.closed() < enoughRows:
	case c.bare():
		p.warn("no stack", "%s", p.absent(c))
	case c.nearly(profile.Incomplete):
		p.once("incomplete", "nearly all stacks lack their outermost functions, as those of programs without frame pointers do: profile_cpu and profile_offcpu have whole stacks of them where --unwind is auto or whole, and this machine allows that")
	}
}
