package otelprofiles

import (
	// The resolver that newSymbolizer asks for: it registers itself.
	_ "github.com/inspektor-gadget/inspektor-gadget/pkg/symbolizer/symtab"
)
