package main

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// The cause is reported, and not "unknown flag".
func TestHostFlags(t *testing.T) {
	cause := errors.New("permission denied")
	why := func() error { return cause }
	for _, args := range [][]string{{"run", "x", "--host"}, {"--verbose", "run", "x", "--host=true"}, {"run", "--containername=shop", "x"}} {
		require.ErrorIs(t, hostFlags(args, why), cause)
		require.NoError(t, hostFlags(args, func() error { return nil }))
	}
	for _, args := range [][]string{{"run", "x"}, {"daemon", "--host=unix:///run/x"}, {"version"}} {
		require.NoError(t, hostFlags(args, why))
	}
}
