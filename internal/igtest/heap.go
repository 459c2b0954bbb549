package igtest

import "runtime"

// Heap returns the used memory in bytes, without garbage.
func Heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // also frees the content of pools
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
