package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestNeeds(t *testing.T) {
	set := func(bits ...uint) (caps uint64) {
		for _, b := range bits {
			caps |= 1 << b
		}
		return caps
	}
	hidden := errors.New("hidden")
	for _, tt := range []struct {
		name      string
		caps      uint64
		addresses error
		want      string
	}{
		{"the daemon's", set(unix.CAP_SYS_ADMIN, unix.CAP_DAC_READ_SEARCH, unix.CAP_SYS_PTRACE, unix.CAP_SYSLOG), nil, ""},
		{"without CAP_SYS_ADMIN", set(unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_DAC_READ_SEARCH, unix.CAP_SYS_PTRACE, unix.CAP_CHECKPOINT_RESTORE), nil, ""},
		{"none", 0, hidden, "CAP_BPF CAP_PERFMON CAP_SYS_PTRACE CAP_CHECKPOINT_RESTORE CAP_DAC_READ_SEARCH CAP_SYSLOG"},
		// Without it, the profiler cannot read any process.
		{"map_files", set(unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_DAC_READ_SEARCH, unix.CAP_SYS_PTRACE), nil, "CAP_CHECKPOINT_RESTORE"},
		// Without it, the profiler ends at once, after each restart.
		{"kernel symbols", set(unix.CAP_SYS_ADMIN, unix.CAP_DAC_READ_SEARCH, unix.CAP_SYS_PTRACE), hidden, "CAP_SYSLOG"},
	} {
		var names []string
		for _, need := range needs(tt.caps, tt.addresses) {
			name, _, _ := strings.Cut(need, " ")
			names = append(names, name)
		}
		assert.Equal(t, tt.want, strings.Join(names, " "), tt.name)
	}
}

func TestKernelAddresses(t *testing.T) {
	for text, ok := range map[string]bool{
		"0000000000000000 A fixed_percpu_data\nffffffff81000000 T _stext\n": true,
		"0000000000000000 A fixed_percpu_data\n0000000000000000 T _stext\n": false,
		"": false,
	} {
		path := filepath.Join(t.TempDir(), "kallsyms")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		err := kernelAddresses(path)
		assert.Equal(t, ok, err == nil, "%q: %v", text, err)
	}
	assert.ErrorIs(t, kernelAddresses(filepath.Join(t.TempDir(), "missing")), os.ErrNotExist)
}
