package symbols

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
)

// readVDSO reads the symbols of the code that the kernel has given this process.
func readVDSO(ctx context.Context, o Reading) (*Table, error) {
	content, err := ReadVDSO()
	if err != nil {
		return nil, err
	}
	return ReadTable(ctx, bytes.NewReader(content), int64(len(content)), o)
}

// ReadVDSO returns the code that the kernel has given this process, an ELF file, which is the same for all.
func ReadVDSO() ([]byte, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(maps)) {
		var start, end uint64
		if !strings.HasSuffix(line, "[vdso]\n") {
			continue
		}
		if _, err := fmt.Sscanf(line, "%x-%x ", &start, &end); err != nil || end <= start || end-start > 1<<20 {
			continue
		}
		memory, err := os.Open("/proc/self/mem")
		if err != nil {
			return nil, err
		}
		defer memory.Close()
		content := make([]byte, end-start)
		if _, err := memory.ReadAt(content, int64(start)); err != nil {
			return nil, err
		}
		return content, nil
	}
	return nil, fmt.Errorf("%w: the kernel has no vdso", ErrNoSymbols)
}
