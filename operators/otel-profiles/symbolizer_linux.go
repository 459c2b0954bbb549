package otelprofiles

// What newSymbolizer asks for: symbol tables are read by this package.
import _ "github.com/inspektor-gadget/inspektor-gadget/pkg/symbolizer/symtab"
