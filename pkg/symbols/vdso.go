package symbols

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/procfs"
)

// openVDSO opens the ELF file that the kernel maps into this process. It is the same for all processes.
func openVDSO() (*os.File, error) {
	content, err := procfs.VDSO()
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
