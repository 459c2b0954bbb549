//go:build e2e

package backends

import (
	"cmp"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/collectortest"
	"github.com/ig-otel-profiles/ig-otel-profiles/internal/igtest"
)

const pyroscopeCPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"

type pyroscope struct {
	*process
	address string
	storage string // its object storage, a folder
	types   string // the profile type to query; pyroscopeCPU if empty
}

// of returns the same server for queries about another profile type.
func (p *pyroscope) of(types string) server {
	return &pyroscope{p.process, p.address, p.storage, types}
}

// profileTypes returns the types that have arrived, in the form that a query has.
func (p *pyroscope) profileTypes(t *testing.T, in span) []string {
	t.Helper()
	var answer struct{ ProfileTypes []struct{ ID string } }
	call(t, "http://"+p.address+"/querier.v1.QuerierService/ProfileTypes", nil, map[string]any{"start": in.from.UnixMilli(), "end": in.until.UnixMilli()}, &answer)
	var types []string
	for _, a := range answer.ProfileTypes {
		types = append(types, a.ID)
	}
	return types
}

// keepsDots leaves labels unchanged, which is the default of 2.x.
const keepsDots = "-validation.disable-label-sanitization=true"

// startPyroscope2 starts Pyroscope with the defaults of 2.x: its storage, which the symbolizer needs, and labels that keep their
// dots.
func startPyroscope2(t *testing.T, flags ...string) *pyroscope {
	t.Helper()
	raft := collectortest.FreeAddr(t)
	return startPyroscopeWith(t, []string{"PYROSCOPE_V2=1"}, append(flags, keepsDots,
		"-write-path=segment-writer", "-enable-query-backend", "-all.enable-v1-write-path=false", "-all.enable-v1-read-path=false",
		"-metastore.raft.bind-address="+raft, "-metastore.raft.advertise-address="+raft, "-metastore.raft.server-id="+raft,
		"-metastore.address="+ownGRPC, "-query-backend.address="+ownGRPC,
		"-segment-writer.lifecycler.addr=127.0.0.1", "-segment-writer.min-ready-duration=0s", "-metastore.min-ready-duration=0s")...)
}

// startSymbolizingPyroscope starts Pyroscope with its symbolizer.
func startSymbolizingPyroscope(t *testing.T) *pyroscope {
	t.Helper()
	return startPyroscope2(t, "-symbolizer.enabled", "-symbolizer.debuginfod-url=http://127.0.0.1:1")
}

// addSymbols stores a file's symbols where the symbolizer stores symbols from debuginfod.
func (p *pyroscope) addSymbols(t *testing.T, buildID, file string) {
	t.Helper()
	const tenant = "anonymous" // the tenant of a single-tenant server
	folder := filepath.Join(p.storage, "symbolizer", tenant)
	require.NoError(t, os.MkdirAll(folder, 0o755))
	igtest.Output(t, igtest.Built(t, igtest.Bin, "lidia"), file, filepath.Join(folder, buildID))
}

// startPyroscope starts Pyroscope as a single process on loopback.
func startPyroscope(t *testing.T, flags ...string) *pyroscope {
	t.Helper()
	return startPyroscopeWith(t, nil, flags...)
}

// ownGRPC is a placeholder in flags for the address of the server's own gRPC port.
const ownGRPC = "127.0.0.1:own"

func startPyroscopeWith(t *testing.T, env []string, flags ...string) *pyroscope {
	t.Helper()
	p := &pyroscope{address: collectortest.FreeAddr(t)}
	_, port, err := net.SplitHostPort(p.address)
	require.NoError(t, err)
	_, grpcPort, _ := net.SplitHostPort(collectortest.FreeAddr(t))
	_, gossip, _ := net.SplitHostPort(collectortest.FreeAddr(t))
	dir := t.TempDir()
	p.storage = dir + "/shared"
	args := append([]string{
		"-target=all", "-usage-stats.enabled=false", "-self-profiling.disable-push=true", "-log.level=warn",
		"-server.http-listen-address=127.0.0.1", "-server.http-listen-port=" + port,
		"-server.grpc-listen-address=127.0.0.1", "-server.grpc-listen-port=" + grpcPort,
		"-memberlist.bind-addr=127.0.0.1", "-memberlist.bind-port=" + gossip,
		"-pyroscopedb.data-path=" + dir + "/data", "-storage.backend=filesystem", "-storage.filesystem.dir=" + p.storage,
		"-blocks-storage.bucket-store.sync-dir=" + dir + "/sync", "-compactor.data-dir=" + dir + "/compactor",
		"-ingester.lifecycler.addr=127.0.0.1",
	}, flags...)
	for _, ring := range []string{
		"distributor.ring", "compactor.ring", "query-scheduler.ring", "overrides-exporter.ring", "store-gateway.sharding-ring", "query-frontend",
	} {
		args = append(args, "-"+ring+".instance-addr=127.0.0.1")
	}
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], ownGRPC, "127.0.0.1:"+grpcPort)
	}
	p.process = run(t, "http://"+p.address+"/ready", env, igtest.Built(t, igtest.Bin, "pyroscope"), args...)
	return p
}

func (p *pyroscope) name() string { return "pyroscope" }
func (p *pyroscope) addr() string { return p.address }
func (p *pyroscope) version() string {
	return moduleVersion("pyroscope", "github.com/grafana/pyroscope")
}

func (p *pyroscope) ask(t *testing.T, method, selector string, in span, more map[string]any, answer any) {
	t.Helper()
	body := map[string]any{
		"profileTypeID": cmp.Or(p.types, pyroscopeCPU), "labelSelector": selector,
		"start": in.from.UnixMilli(), "end": in.until.UnixMilli(),
	}
	for k, v := range more {
		body[k] = v
	}
	call(t, "http://"+p.address+"/querier.v1.QuerierService/"+method, nil, body, answer)
}

// number is a 64-bit integer, which the JSON answer contains as a string.
type number int64

func (n *number) UnmarshalJSON(b []byte) error {
	if len(b) > 1 && b[0] == '"' {
		b = b[1 : len(b)-1]
	}
	v, err := strconv.ParseFloat(string(b), 64)
	*n = number(v)
	return err
}

func (p *pyroscope) query(t *testing.T, selector string, in span) []stack {
	t.Helper()
	var answer struct {
		Sample []struct {
			LocationID []number `json:"locationId"`
			Value      []number
		}
		Location []struct {
			ID   number
			Line []struct {
				FunctionID number `json:"functionId"`
			}
		}
		Function    []struct{ ID, Name number }
		StringTable []string
	}
	p.ask(t, "SelectMergeProfile", selector, in, nil, &answer)
	names := map[number]string{}
	for _, f := range answer.Function {
		names[f.ID] = answer.StringTable[f.Name]
	}
	frames := map[number][]string{}
	for _, l := range answer.Location {
		for _, line := range l.Line {
			frames[l.ID] = append(frames[l.ID], names[line.FunctionID])
		}
	}
	var stacks []stack
	for _, s := range answer.Sample {
		one := stack{value: int64(s.Value[0])}
		for _, l := range s.LocationID {
			one.functions = append(one.functions, frames[l]...)
		}
		stacks = append(stacks, one)
	}
	return stacks
}

func (p *pyroscope) flame(t *testing.T, selector string, in span) int64 {
	t.Helper()
	var answer struct{ Flamegraph struct{ Total number } }
	p.ask(t, "SelectMergeStacktraces", selector, in, nil, &answer)
	return int64(answer.Flamegraph.Total)
}

func (p *pyroscope) stored(t *testing.T, selector string, in span) int64 {
	t.Helper()
	var answer struct {
		Series []struct{ Points []struct{ Value float64 } }
	}
	in.until = in.until.Add(time.Minute) // the last step has the same length as the others
	p.ask(t, "SelectSeries", selector, in, map[string]any{"step": 15.0}, &answer)
	sum := 0.0
	for _, s := range answer.Series {
		for _, point := range s.Points {
			sum += point.Value
		}
	}
	return int64(sum)
}

func (p *pyroscope) diff(t *testing.T, selector string, left, right span) (int64, int64) {
	t.Helper()
	side := func(in span) map[string]any {
		return map[string]any{
			"profileTypeID": cmp.Or(p.types, pyroscopeCPU), "labelSelector": selector, "start": in.from.UnixMilli(), "end": in.until.UnixMilli(),
		}
	}
	var answer struct {
		Flamegraph struct{ LeftTicks, RightTicks number }
	}
	call(t, "http://"+p.address+"/querier.v1.QuerierService/Diff", nil, map[string]any{"left": side(left), "right": side(right)}, &answer)
	return int64(answer.Flamegraph.LeftTicks), int64(answer.Flamegraph.RightTicks)
}

func (p *pyroscope) seconds(value int64, _ int) float64 { return time.Duration(value).Seconds() }

func (p *pyroscope) labels(t *testing.T, selector string, in span) []string {
	t.Helper()
	var answer struct{ Names []string }
	p.ask(t, "LabelNames", "", in, map[string]any{"profileTypeID": nil, "labelSelector": nil, "matchers": []string{selector}}, &answer)
	return answer.Names
}
