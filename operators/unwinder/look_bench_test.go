package unwinder

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
)

// BenchmarkLook reads the list of watched namespaces, as happens ten times a second.
func BenchmarkLook(b *testing.B) {
	for _, n := range []int{1, 20, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 4, MaxEntries: 1024})
			require.NoError(b, err)
			defer m.Close()
			for i := range n {
				require.NoError(b, m.Put(uint64(i+1), uint32(1)))
			}
			f := filter{namespaces: m, now: sinceBoot}
			for b.Loop() {
				f.look()
			}
			require.Len(b, f.watched, n)
		})
	}
}
