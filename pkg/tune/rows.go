package tune

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/datasource"
	"github.com/inspektor-gadget/inspektor-gadget/pkg/operators"
)

// rowsRead is the map through which a gadget's programs know how many of their rows were read. See gadgets/include/rows.h.
const rowsRead = "rows_read"

// firstPriority makes a callback run before all others. So it sees all rows of the map, and no added ones.
const firstPriority = math.MinInt

// RowCount counts the rows that Inspektor Gadget reads from a gadget's map, and passes the count to the gadget's programs. The
// programs then know how many rows are free, and keep some of them for processes that have few.
type RowCount struct {
	mu   sync.Mutex
	rows uint64
	put  func(rowCount) // nil before Start
}

// rowCount is struct rows_read of gadgets/include/rows.h.
type rowCount struct {
	Rows uint64
	Turn uint32
	_    uint32
}

// CountRows subscribes to the rows of a gadget's map. It returns nil if the gadget's programs do not need the count. Call it at
// PreStart.
func CountRows(gadgetCtx operators.GadgetContext) (*RowCount, error) {
	if MapSpec(gadgetCtx, rowsRead) == nil {
		return nil, nil
	}
	c := &RowCount{}
	for name, ds := range gadgetCtx.GetDataSources() {
		if ds.Type() != datasource.TypeArray {
			continue
		}
		// Inspektor Gadget passes all rows of one read in one array.
		err := ds.SubscribeArray(func(_ datasource.DataSource, rows datasource.DataArray) error {
			c.add(rows.Len())
			return nil
		}, firstPriority)
		if err != nil {
			return nil, fmt.Errorf("counting the rows of the data source %q: %w", name, err)
		}
	}
	return c, nil
}

// Start passes the count to the gadget's programs, which are already loaded. The receiver can be nil.
func (c *RowCount) Start(gadgetCtx operators.GadgetContext) {
	if c == nil {
		return
	}
	m := Map(gadgetCtx, rowsRead)
	if m == nil {
		return
	}
	log := gadgetCtx.Logger()
	c.mu.Lock()
	c.put = func(n rowCount) {
		// An array accepts every update, unless its size is wrong.
		if err := m.Update(uint32(0), n, ebpf.UpdateAny); err != nil {
			log.Warnf("writing the number of rows to the gadget: %v", err)
		}
	}
	c.mu.Unlock()
	c.add(0)
}

// add adds the rows of one read, and begins a turn.
func (c *RowCount) add(rows int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rows += uint64(rows)
	if c.put != nil {
		c.put(rowCount{Rows: c.rows, Turn: rand.Uint32() | 1})
	}
}
