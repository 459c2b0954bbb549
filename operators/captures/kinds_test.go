package captures

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
	gadgetcontext "github.com/inspektor-gadget/inspektor-gadget/pkg/gadget-context"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"
)

var lockKinds = []string{"kernel_mutex", "user_mutex", "user_rwlock", "user_once", "user_futex"}

// These are the types of rows whose key contains a kind.
var (
	lockKey = &btf.Struct{Name: "lock_key", Size: 8, Members: []btf.Member{
		{Name: "number", Type: &btf.Int{Size: 4}}, {Name: "kind_raw", Type: lockKind(), Offset: 32},
	}}
	lockValue = &btf.Struct{Name: "lock_value", Size: 16, Members: []btf.Member{
		{Name: "delay_raw", Type: &btf.Int{Size: 8}}, {Name: "address_raw", Type: &btf.Int{Size: 8}, Offset: 64},
	}}
)

func lockKind() *btf.Enum {
	enum := &btf.Enum{Name: "lock_kind", Size: 4}
	for i, name := range lockKinds {
		enum.Values = append(enum.Values, btf.EnumValue{Name: name, Value: uint64(i)})
	}
	return enum
}

// lockKindsOf reads the kinds of profile_lock.
func lockKindsOf(t *testing.T, change func(*viper.Viper)) (*kinds, error) {
	t.Helper()
	f, err := os.Open("../../gadgets/profile_lock/gadget.yaml")
	require.NoError(t, err)
	defer f.Close()
	metadata := viper.New()
	metadata.SetConfigType("yaml")
	require.NoError(t, metadata.ReadConfig(f))
	metadata = metadata.Sub("operator.captures.kinds")
	if change != nil {
		change(metadata)
	}
	return newKinds(gadgetcontext.New(t.Context(), "gadget"), metadata, lockKey, lockValue)
}

func kindBytes(name string) []byte {
	return order.AppendUint32(nil, uint32(slices.Index(lockKinds, name)))
}

func TestKindsOfLocks(t *testing.T) {
	k, err := lockKindsOf(t, nil)
	require.NoError(t, err)
	require.True(t, k.refines(kindBytes("user_futex")))
	require.False(t, k.refines(kindBytes("kernel_mutex")))
	// No function decides for these stacks, so later events must not be skipped.
	untold := []string{"syscall own_wait worker main", "a b c d e f pthread_mutex_lock", "my_pthread_mutex_lock pthread_mutex_lock_stats", ""}
	for _, tc := range []struct{ frames, want string }{
		// glibc with symbols, and stripped as in Debian
		{"futex_wait __lll_lock_wait pthread_mutex_lock handle_request main", "user_mutex"},
		{"__GI___lll_lock_wait own_lock", "user_mutex"},
		{" pthread_mutex_lock@@GLIBC_2.2.5 handle_request main", "user_mutex"},
		{"  ___pthread_mutex_lock handle_request", "user_mutex"},
		{" pthread_mutex_clocklock", "user_mutex"},
		{" pthread_mutex_timedlock main", "user_mutex"},
		{"  pthread_rwlock_wrlock write_entry", "user_rwlock"},
		{"__futex_abstimed_wait_common64 __pthread_rwlock_rdlock_full64 pthread_rwlock_rdlock", "user_rwlock"},
		{"__lll_lock_wait_private malloc parse", "user_mutex"},
		{" malloc parse", "user_mutex"},
		{" pthread_once init", "user_once"},
		{"__cxa_guard_acquire instance", "user_once"},
		// other waits in glibc
		{"__futex_abstimed_wait_common64 pthread_cond_wait@@GLIBC_2.3.2 worker start_thread", "user_futex"},
		{" pthread_cond_timedwait worker", "user_futex"},
		{" sem_wait worker", "user_futex"},
		{" __new_sem_wait_slow64 sem_wait worker", "user_futex"},
		{" pthread_barrier_wait worker", "user_futex"},
		{" pthread_join main", "user_futex"},
		{"syscall own_wait worker main", "user_futex"},
		// a wait for something else, inside a function of a list
		{" pthread_cond_wait wait_for_memory malloc main", "user_futex"},
		// pthread_cond_wait takes the mutex again before it returns
		{"__lll_lock_wait __pthread_mutex_cond_lock pthread_cond_wait worker", "user_mutex"},
		// musl
		{"__timedwait_cp __timedwait __pthread_mutex_timedlock main", "user_mutex"},
		{"__wait __lock malloc", "user_mutex"},
		{"__timedwait_cp pthread_cond_timedwait main", "user_futex"},
		{"__timedwait __pthread_rwlock_timedwrlock main", "user_rwlock"},
		// Rust 1.63 and current Rust, in both mangling schemes, and parking_lot
		{"syscall _ZN3std3sys4unix5locks11futex_mutex5Mutex14lock_contended17h0123456789abcdefE shop::order", "user_mutex"},
		{"syscall _ZN3std3sys4sync5mutex5futex5Mutex14lock_contended17h0123456789abcdefE shop::order", "user_mutex"},
		{"syscall _RNvMNtNtNtNtCs1_3std3sys4sync5mutex5futexNtB2_5Mutex14lock_contended shop::order", "user_mutex"},
		{"syscall _ZN3std3sys4sync6rwlock5futex6RwLock14read_contended17h0123456789abcdefE", "user_rwlock"},
		{"syscall _ZN3std3sys4sync7condvar5futex7Condvar12wait_timeout17h0123456789abcdefE", "user_futex"},
		{"syscall _ZN11parking_lot9raw_mutex8RawMutex9lock_slow17h0123456789abcdefE", "user_mutex"},
		// Go's runtime: an internal lock, and a thread without work
		{"runtime.futex.abi0 runtime.futexsleep runtime.lock2 runtime.mallocgc", "user_mutex"},
		{"runtime.futex.abi0 runtime.futexsleep runtime.notesleep runtime.stopm runtime.findRunnable", "user_futex"},
		{"runtime.futex.abi0 runtime.futexsleep runtime.notetsleep_internal runtime.notetsleepg", "user_futex"},
		// too far from the leaf, or in no list
		{"a b c d e f pthread_mutex_lock", "user_futex"},
		{"my_pthread_mutex_lock pthread_mutex_lock_stats", "user_futex"},
		{"", "user_futex"},
	} {
		var frames []frame
		for name := range strings.SplitSeq(tc.frames, " ") {
			frames = append(frames, frame{name: name})
		}
		// The second time, the kinds come from the cache.
		for range 2 {
			kind := kindBytes("user_futex")
			keep, told := k.refine(kind, frames)
			require.Equal(t, tc.want, lockKinds[order.Uint32(kind)], tc.frames)
			require.Equal(t, tc.want != "user_futex", keep, tc.frames)
			require.Equal(t, !slices.Contains(untold, tc.frames), told, tc.frames)
		}
	}
	k.all = true
	kind := kindBytes("user_futex")
	keep, told := k.refine(kind, nil)
	require.True(t, keep)
	require.False(t, told)
	require.Equal(t, kindBytes("user_futex"), kind)
}

// The cache of names must be limited.
func TestKindsRememberSoMany(t *testing.T) {
	k, err := lockKindsOf(t, nil)
	require.NoError(t, err)
	for i := range mostNames + 10 {
		_, ok := k.rules.kindOf(strings.Repeat("x", i+1))
		require.False(t, ok)
	}
	require.LessOrEqual(t, len(k.rules.known), mostNames)
}

func TestKindsWrong(t *testing.T) {
	for _, tc := range []struct {
		set   string
		value any
		want  string
	}{
		{"field", "number", `kinds.field: lock_key has no enum member "number"`},
		{"field", "none", `kinds.field: lock_key has no enum member "none"`},
		{"others", map[string]any{"map": "not_locks", "address": "none"}, `kinds.others.address: lock_value has no member "none" of 8 bytes`},
		{"of", "user", `kinds.of: "user" is not a value of "kind_raw"`},
		{"functions", map[string][]string{"user_lock": {"lock"}}, `kinds.functions: "user_lock" is not a value of "kind_raw"`},
	} {
		_, err := lockKindsOf(t, func(v *viper.Viper) { v.Set(tc.set, tc.value) })
		require.EqualError(t, err, tc.want)
	}
}
