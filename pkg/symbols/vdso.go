package symbols

import (
	"fmt"
	"os"
	"strings"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/symbols/symtab"

	"golang.org/x/sys/unix"
)

// openVDSO opens the code that the kernel has given this process, an ELF file, which is the same for all.
func openVDSO() (*os.File, error) {
	content, err := contentOfVDSO()
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("vdso", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("copying the vdso: %w", err)
	}
	f := os.NewFile(uintptr(fd), "vdso")
	if _, err := f.Write(content); err != nil {
		f.Close()
		return nil, fmt.Errorf("copying the vdso: %w", err)
	}
	return f, nil
}

func contentOfVDSO() ([]byte, error) {
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
	return nil, fmt.Errorf("%w: the kernel has no vdso", symtab.ErrNoSymbols)
}
