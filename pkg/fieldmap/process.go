package fieldmap

import (
	"strings"

	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-service/api"
	ebpftypes "github.com/inspektor-gadget/inspektor-gadget/pkg/operators/ebpf/types"
)

// processComm and processPID are members of IG's struct gadget_process, as most rows have it.
const (
	processComm = "proc.comm"
	processPID  = "proc.pid"
)

// topLevel maps the fields of rows without such a struct to the members that they represent, as in IG's trace_tcpdrop. IG's
// gadgets use these names for a row's process. Fields of the same types with other names, for example tpid, describe another
// process.
var topLevel = map[string]struct{ typeName, member string }{
	"comm": {ebpftypes.CommTypeName, processComm},
	"pid":  {ebpftypes.PidTypeName, processPID},
	"tid":  {ebpftypes.TidTypeName, "proc.tid"},
	"ppid": {ebpftypes.PpidTypeName, "proc.parent.pid"},
	"uid":  {ebpftypes.UidTypeName, "proc.creds.uid"},
}

// findNested checks whether rows hold their process in a struct.
func (c *compiler) findNested() {
	for _, acc := range c.fields {
		name := acc.FullName()
		if name == "proc" || strings.HasPrefix(name, "proc.") || acc.HasAnyTagsOf("type:"+ebpftypes.ProcessTypeName) {
			c.nested = true
		}
	}
}

// meaning returns the name of the process member that a field represents, or else the field's own name.
func (c *compiler) meaning(acc datasource.FieldAccessor) string {
	name := acc.FullName()
	field, ok := topLevel[name]
	if !ok || c.nested || acc.Parent() != nil || !acc.HasAnyTagsOf("type:"+field.typeName) {
		return name
	}
	switch acc.Type() {
	case api.Kind_String, api.Kind_CString:
		ok = field.member == processComm
	case api.Kind_Uint32:
		ok = field.member != processComm
	default:
		ok = false
	}
	if !ok {
		return name
	}
	return field.member
}

// processField returns the field that is, or represents, a member of the process. It returns nil if there is none.
func (c *compiler) processField(member string) datasource.FieldAccessor {
	for _, acc := range c.fields {
		if c.meaning(acc) == member {
			return acc
		}
	}
	return nil
}
