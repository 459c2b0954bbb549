package otelprofiles

import (
	"fmt"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/profile"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/stack"
	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/tune"
)

// enoughRows is a statistically significant number of rows without a stack.
const enoughRows = 5

// bare reports whether nearly all rows in closed windows lack a stack.
func (c Counts) bare() bool { return c.nearly(profile.NoStack) }

// nearly reports whether nearly all rows in closed windows have this fate.
func (c Counts) nearly(fate profile.Fate) bool {
	return c.Fates[fate] > 0 && 20*c.Fates[fate] >= 19*c.closed()
}

// closed returns the number of rows in closed windows.
func (c Counts) closed() (n int64) {
	for _, rows := range c.Fates {
		n += rows
	}
	return n
}

// absent describes how many rows lack a stack, and the known reasons.
func (p *pipeline) absent(c Counts) string {
	var why []string
	for reason, n := range p.plan.Stats().Absences {
		if n == 0 {
			continue
		}
		switch stack.Absence(reason) {
		case stack.NotCollected:
			if off := p.inst.uncollected; len(off) > 0 {
				why = append(why, "the gadget collects no stacks without "+strings.Join(off, " and "))
			} else {
				why = append(why, "the gadget collected no stacks")
			}
		case stack.NoRoom:
			why = append(why, "the gadget's stack map was full: select fewer programs")
		case stack.Gone:
			why = append(why, "the gadget's stack map dropped stacks before they were read")
		case stack.Refused:
			why = append(why, "the kernel could not record the stacks")
		case stack.NoneThere:
			why = append(why, "kernel threads have no user stack, and programs in user mode have no kernel stack")
		case stack.NoText:
			why = append(why, "the text fields for stacks are empty")
		}
	}
	text := fmt.Sprintf("%d of %d rows so far have no stack", c.Fates[profile.NoStack], c.closed())
	if len(why) > 0 {
		text += ": " + strings.Join(why, "; ")
	}
	return text
}

// reportStacks warns if nearly all stacks are missing or cut.
func (p *pipeline) reportStacks(c Counts) {
	switch {
	case c.closed() < enoughRows:
	case c.bare():
		p.warn("no stack", "%s", p.absent(c))
	case c.nearly(profile.Incomplete):
		how := "with --unwind=auto or --unwind=whole, this project's gadgets do not need frame pointers, if this machine allows that"
		if p.inst.otelStacks {
			how = "with --" + tune.OtelFlag + ", gadgets that attach to perf events, kprobes or uprobes do not need frame pointers"
		}
		p.once("incomplete", "nearly all stacks lack their outermost functions, probably because the programs have no frame pointers; %s", how)
	}
}
