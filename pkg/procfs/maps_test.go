package procfs

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMappings(t *testing.T) {
	text := "55d0c0a4e000-55d0c0b2f000 r-xp 0002f000 fd:1a 1234                       /usr/bin/a b (deleted)\n" +
		"7f00-7e00 r-xp 00000000 00:00 0 \n" + // it ends before it begins
		"7f00-7f80 r-x 00000000 00:00 0 \n" +
		"8000000000000000-8000000000001000 r-xp 00000000 00:00 0 \n" + // in the kernel
		"7f00-7f80 r-xp 00000000 0000 0 \n" +
		"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n" +
		"7f00-7f80 rw-p 00000000 00:00 0"
	require.Equal(t, []Mapping{
		{Start: 0x55d0c0a4e000, End: 0x55d0c0b2f000, Perms: "r-xp", Offset: 0x2f000, Major: 0xfd, Minor: 0x1a, Inode: 1234, Path: "/usr/bin/a b (deleted)"},
		{Start: 0x7f00, End: 0x7f80, Perms: "rw-p"},
	}, slices.Collect(Mappings([]byte(text))))
}
