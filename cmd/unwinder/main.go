// unwinder collects whole stacks for gadgets' events with the OpenTelemetry eBPF profiler, and writes them to a pipe. ig and
// Inspektor Gadget's daemon start it for gadgets like profile_cpu. Do not start it yourself.
//
// It is a separate program because it reads the files and memory of hostile programs. If it crashes, it is restarted. It exits
// together with the program that started it.
//
// File descriptor 0 delivers PIDs, four bytes each. The program reads the files of these processes early. It exits when the
// descriptor is closed. The log goes to descriptor 2, and the stream of package wire goes to descriptor 3. Descriptor 4 is
// a file with counters that outlives the process (package wire, Counters). Descriptor 5 is a socket. Through it, the program
// sends the descriptors of the entry programs for gadgets, and receives requests for more. The descriptors from 6 on are maps
// that the entry programs share with gadgets (package wire, SharedMaps).
//
// With -read, the program reads function names instead. It receives the files through a socket, descriptor 3, and runs
// unprivileged. Package unwinder starts it (Reader). Package symbols defines the messages (Conn).
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/unwinder/wire"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "level=ERROR msg=%q\n", err)
		os.Exit(1)
	}
}

func run() error {
	var c config
	flag.StringVar(&c.languages, "languages", "all", "languages to unwind")
	flag.IntVar(&c.scale, "map-scale", 0, "multiply the size of the eBPF maps by 2^N")
	chains := flag.String("chains", "", "comma-separated kinds of gadget programs for which stacks are unwound from the start: kprobe, raw_tp, perf, tracepoint, otel_kprobe, otel_perf")
	flag.BoolVar(&c.spans, "spans", false, "keep the span IDs that programs publish")
	labels := flag.String("labels", "", "comma-separated names of pprof labels to keep")
	avoid := flag.String("leave-alone", "", "comma-separated list of processes whose files are not read: PID:START, with START in nanoseconds since boot")
	read := flag.Bool("read", false, "do not sample: drop privileges, and read files that are received over a socket")
	memory := flag.Uint64("memory", 256<<20, "memory limit of -read, in bytes")
	flag.Parse()
	if *labels != "" {
		c.labels = strings.Split(*labels, ",")
	}

	c.chains, _ = wire.ParseChains(*chains) // the starter has checked the list
	c.avoid = parseAvoided(*avoid)
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: withoutTime}))

	if *read {
		return readFiles(*memory)
	}
	pipe := os.NewFile(3, "pipe")
	if _, err := pipe.Stat(); err != nil {
		return errors.New("only ig and Inspektor Gadget's daemon start this program: run the gadget profile_cpu")
	}
	counters, err := openCounters(4)
	if err != nil {
		return fmt.Errorf("mapping the counters: %w", err)
	}
	out := wire.NewWriter(pipe)
	if reason := missing(); reason != "" {
		out.Hello(reason)
		return out.Flush()
	}

	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	// Ctrl-C in a terminal reaches the whole process group, but the starter handles it.
	signal.Ignore(unix.SIGINT, unix.SIGHUP, unix.SIGPIPE)
	wanted := make(chan uint32, mostWanted)
	c.wanted = wanted
	go func() {
		readWanted(os.Stdin, wanted)
		stop()
	}()

	s := newSampler(out, c, counters, logger)
	defer s.close()
	began := time.Now()
	t, err := start(ctx, c, s, logger)
	if err != nil {
		return err
	}
	s.change(func() { s.loaded = true })
	announced := make(chan struct{})
	go func() {
		defer close(announced)
		t.reader.firstPass(ctx)
		s.change(func() { s.started = &wire.Ready{StartMillis: uint64(time.Since(began).Milliseconds())} })
	}()
	err = s.run(ctx, t)
	stop()
	<-announced
	t.close()
	return err
}

// mostWanted limits how many requested processes can wait to be read.
const mostWanted = 1024

// readWanted passes on PIDs until from ends. It drops PIDs if there is no room, because a process is read at its first event
// anyway.
func readWanted(from io.Reader, wanted chan<- uint32) {
	for {
		var pid [4]byte
		if _, err := io.ReadFull(from, pid[:]); err != nil {
			return
		}
		select {
		case wanted <- binary.LittleEndian.Uint32(pid[:]):
		default:
		}
	}
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}
