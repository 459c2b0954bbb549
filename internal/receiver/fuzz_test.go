package receiver

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
)

// FuzzParseJSON writes each request that it can read, reads it again, and requires the same request.
func FuzzParseJSON(f *testing.F) {
	var line bytes.Buffer
	require.NoError(f, WriteJSONLine(&line, request()))
	f.Add(line.Bytes())
	f.Fuzz(func(t *testing.T, line []byte) {
		req, err := ParseJSON(line)
		if err != nil {
			return
		}
		var again bytes.Buffer
		require.NoError(t, WriteJSONLine(&again, req))
		got, err := ParseJSON(again.Bytes())
		require.NoError(t, err)
		require.True(t, proto.Equal(req, got))
	})
}
