package receiver

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"google.golang.org/protobuf/proto"
)

// FuzzPprof writes the pprof files of any message that decodes.
func FuzzPprof(f *testing.F) {
	body, err := proto.Marshal(request())
	require.NoError(f, err)
	f.Add(body)
	f.Fuzz(func(t *testing.T, body []byte) {
		req := &collectorpb.ExportProfilesServiceRequest{}
		if proto.Unmarshal(body, req) != nil {
			return
		}
		types, byType := ByType(Resolve(req))
		for _, typ := range types {
			require.NoError(t, WritePprof(io.Discard, byType[typ]))
		}
	})
}

// FuzzParseJSON reads back what it could read once.
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
