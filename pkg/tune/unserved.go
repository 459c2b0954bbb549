package tune

import (
	"fmt"
	"slices"
	"strings"
)

// unserved are flags of Inspektor Gadget that ask for its own way to unwind interpreted programs, which is no part of this build: they
// would be accepted and have no effect, or keep the gadget from loading.
var unserved = []struct {
	flag, value string // one of the flag's values, with commas between them
	instead     string
}{
	{"collect-otel-stack", "true", "leave it out"},
	{"symbolizers", "otel-ebpf-profiler", "leave it out: functions get their names without it"},
}

// refuse returns an error if flags ask for what this build cannot do.
func refuse(flags map[string]string) error {
	for _, u := range unserved {
		if slices.Contains(strings.Split(strings.ToLower(flags[u.flag]), ","), u.value) {
			return fmt.Errorf("--%s=%s: this build does not unwind interpreted programs for other gadgets: %s; profile_cpu of this project has their stacks", u.flag, u.value, u.instead)
		}
	}
	return nil
}
