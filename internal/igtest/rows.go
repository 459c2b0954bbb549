package igtest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// ParseRows reads ig's output in JSON: a row, or an array of rows, per line.
func ParseRows(t *testing.T, printed []byte) (rows []map[string]any) {
	t.Helper()
	lines := bufio.NewScanner(bytes.NewReader(printed))
	lines.Buffer(nil, 256<<20)
	for lines.Scan() {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if line[0] != '[' {
			line = append(append([]byte{'['}, line...), ']')
		}
		var some []map[string]any
		decoder := json.NewDecoder(bytes.NewReader(line))
		decoder.UseNumber()
		require.NoError(t, decoder.Decode(&some), "line %.500s", line)
		rows = append(rows, some...)
	}
	require.NoError(t, lines.Err())
	return rows
}

// Number reads a field of a row.
func Number(t *testing.T, row map[string]any, path ...string) int64 {
	t.Helper()
	var v any = row
	for _, name := range path {
		fields, ok := v.(map[string]any)
		require.True(t, ok, "%v in %v", path, row)
		v = fields[name]
	}
	n, ok := v.(json.Number)
	require.True(t, ok, "%v in %v", path, row)
	i, err := n.Int64()
	require.NoError(t, err)
	return i
}

// Accounts is the exporter's closing line for a data source.
type Accounts struct {
	Read, Exported, NotExported, NoStack, Delivered, Held, Partial, Dropped int64
}

var accountsLine = regexp.MustCompile(
	`data source \\?"[^"\\]+\\?": (\d+) rows read, (\d+) exported, (\d+) not exported[^,]*, (\d+) without stack; ` +
		`exporter .*: (\d+) delivered, (\d+) held, (\d+) in partly accepted requests, (\d+) dropped`)

// ReadAccounts finds the closing line in a log.
func ReadAccounts(t *testing.T, log string) (a Accounts) {
	t.Helper()
	found := accountsLine.FindStringSubmatch(log)
	require.NotNil(t, found, "the operator's summary is missing: %s", log)
	readNumbers(t, found[1:], &a.Read, &a.Exported, &a.NotExported, &a.NoStack, &a.Delivered, &a.Held, &a.Partial, &a.Dropped)
	return a
}

func readNumbers(t *testing.T, words []string, into ...*int64) {
	t.Helper()
	for i, n := range into {
		var err error
		*n, err = strconv.ParseInt(words[i], 10, 64)
		require.NoError(t, err)
	}
}

var noise = regexp.MustCompile(`(?m)^.*(is lost: lookup|msg"?[=:]"symbolizer: |signature verification).*\n`)

// WithoutNoise omits Inspektor Gadget's lines about rows without a stack and about programs that have exited.
func WithoutNoise(log []byte) []byte { return noise.ReplaceAll(log, nil) }
