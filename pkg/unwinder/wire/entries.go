package wire

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ig-otel-profiles/ig-otel-profiles/pkg/printable"
)

// ChainKind is the type of eBPF program that a chain of unwinders serves. A tail call can only call programs of its own type.
type ChainKind int

// These are the kinds. The first ones are in the order of enum unwind_chain in gadgets/include/unwind_slot.h.
const (
	ChainKprobe ChainKind = iota // also for uprobes
	ChainRawTracepoint
	ChainPerfEvent
	ChainTracepoint
	ChainOtelKprobe // kprobes of Inspektor Gadget's own gadgets, which have no slot
	ChainOtelPerf   // perf events of Inspektor Gadget's own gadgets
	ChainKinds      // the number of kinds
)

// Slots is the number of kinds with a slot.
const Slots = int(ChainOtelKprobe)

var chainNames = [ChainKinds]string{"kprobe", "raw_tp", "perf", "tracepoint", "otel_kprobe", "otel_perf"}

// String returns the kind's name in the gadgets' headers.
func (k ChainKind) String() string { return chainNames[k] }

// ParseChains parses a comma-separated list of names of kinds.
func ParseChains(list string) ([]ChainKind, error) {
	var kinds []ChainKind
	for name := range strings.SplitSeq(list, ",") {
		k := slices.Index(chainNames[:], name)
		switch {
		case k >= 0:
			kinds = append(kinds, ChainKind(k))
		case list != "":
			return nil, fmt.Errorf("unknown kind of program %q: use a comma-separated list of %s", name, strings.Join(chainNames[:], ", "))
		}
	}
	return kinds, nil
}

// JoinChains returns the names of kinds, separated by sep.
func JoinChains(kinds []ChainKind, sep string) string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.String()
	}
	return strings.Join(names, sep)
}

// These are the results of a sampled event: enum unwind_result in gadgets/include/unwind_slot.h.
const (
	ResultNoChain = iota
	ResultDone
	ResultUnknownProcess
	ResultBusy
	ResultNoRoom
	ResultOverBudget
	Results // the number of results
)

// SharedMaps lists the entry programs' maps that the starter owns, in the order in which it passes them. They are the slots,
// and two maps for programs without a slot.
var SharedMaps = [...]string{"slots", "otel", "otel_ids"}

// Slot is struct unwind_slot.
type Slot struct{ Busy, Seq, ID, Result, Flags uint64 }

// Otel is struct unwind_otel.
type Otel struct {
	Second, Taken uint64
	Results       [Results]uint64
}

// These are the fields of an event's ID.
const (
	runShift = 54
	// MaxRuns is the number of gadget runs that an ID can distinguish.
	MaxRuns = 1 << (64 - runShift)
	// OtelRun is the common number of all runs of Inspektor Gadget's own gadgets.
	OtelRun = MaxRuns - 1
)

// OtelAge returns how long after the time boot (nanoseconds since boot) an event of Inspektor Gadget's own gadgets happened.
// The event's ID contains its time. For an earlier event, the result is more than a day.
func OtelAge(id, boot uint64) time.Duration {
	const unit, mask = 1024, 1<<(runShift-16) - 1
	return time.Duration((id>>16-boot/unit)&mask) * unit
}

// RunOf returns the number of the run in an event's ID.
func RunOf(id uint64) uint32 { return uint32(id >> runShift) }

// These are parts of the messages on the socket for entry programs. The starter requests kinds of chains. The unwinder answers
// with descriptors, and with a line for each kind without a descriptor. Without a request, its first answer contains the chains
// that it was started with.
const (
	askedHead   = "chains 1 "
	entriesHead = "entries 2"
	maxEntries  = 4096 // in a message
	maxRefused  = 256  // bytes of a reason
)

// Entries holds the results of loading chains: the descriptors of loaded chains, and the reasons why others are missing.
type Entries struct {
	Descriptors map[ChainKind]int
	Refused     map[ChainKind]string
}

// AskChains requests further kinds of chains over a SOCK_SEQPACKET socket.
func AskChains(socket int, kinds []ChainKind) error {
	return unix.Sendmsg(socket, []byte(askedHead+JoinChains(kinds, ",")), nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
}

// ReceiveAsked waits for a message of AskChains. The error is io.EOF if the sender has exited.
func ReceiveAsked(socket int) ([]ChainKind, error) {
	text := make([]byte, maxEntries)
	n, _, _, _, err := unix.Recvmsg(socket, text, nil, 0)
	switch {
	case err != nil:
		return nil, fmt.Errorf("receiving the kinds of programs to load: %w", err)
	case n == 0:
		return nil, io.EOF
	}
	names, ok := strings.CutPrefix(string(text[:n]), askedHead)
	if !ok {
		return nil, fmt.Errorf("%w: the message does not request programs", ErrProtocol)
	}
	return ParseChains(names)
}

// SendEntries sends the results of loading chains over a SOCK_SEQPACKET socket.
func SendEntries(socket int, e Entries) error {
	text, rights := entriesHead, []int(nil)
	for k := range ChainKinds {
		if fd, ok := e.Descriptors[k]; ok {
			text += " " + k.String()
			rights = append(rights, fd)
		}
	}
	for k := range ChainKinds {
		if why, ok := e.Refused[k]; ok {
			why = printable.Clean(why)
			text += "\n" + k.String() + " " + why[:min(len(why), maxRefused)]
		}
	}
	return unix.Sendmsg(socket, []byte(text), unix.UnixRights(rights...), nil, unix.MSG_NOSIGNAL)
}

// ReceiveEntries waits for a message of SendEntries. The caller owns the descriptors, which can be of any type. On an error
// there are none. The error is io.EOF if the sender has exited.
func ReceiveEntries(socket int) (Entries, error) {
	text := make([]byte, maxEntries)
	// The buffer has room for one more descriptor than is valid, so a message with too many is detected.
	rights := make([]byte, unix.CmsgSpace(4*int(ChainKinds+1)))
	n, rightsLen, flags, _, err := unix.Recvmsg(socket, text, rights, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return Entries{}, fmt.Errorf("receiving the unwinder's programs: %w", err)
	}
	var got []int
	messages, err := unix.ParseSocketControlMessage(rights[:rightsLen])
	for i := range messages {
		fds, parseErr := unix.ParseUnixRights(&messages[i])
		got, err = append(got, fds...), errors.Join(err, parseErr)
	}
	if n == 0 && len(got) == 0 {
		return Entries{}, io.EOF
	}
	found, parseErr := parseEntries(string(text[:n]), got)
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		parseErr = errors.New("it is too long")
	}
	if err = errors.Join(err, parseErr); err != nil {
		for _, fd := range got {
			_ = unix.Close(fd)
		}
		return Entries{}, fmt.Errorf("%w: the message with its programs: %w", ErrProtocol, err)
	}
	return found, nil
}

// parseEntries assigns descriptors to kinds, and parses the reasons of the other kinds.
func parseEntries(text string, descriptors []int) (Entries, error) {
	e := Entries{Descriptors: map[ChainKind]int{}, Refused: map[ChainKind]string{}}
	text, ok := strings.CutPrefix(text, entriesHead)
	if !ok {
		return e, errors.New("its start is unknown")
	}
	names, refused, _ := strings.Cut(text, "\n")
	for i, name := range strings.Fields(names) {
		if i >= len(descriptors) {
			return e, errors.New("it has fewer descriptors than names")
		}
		if k := slices.Index(chainNames[:], name); k >= 0 {
			e.Descriptors[ChainKind(k)] = descriptors[i]
		}
	}
	if len(e.Descriptors) != len(descriptors) {
		return e, errors.New("it must have one descriptor for each kind")
	}
	for line := range strings.Lines(refused) {
		name, why, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if k := slices.Index(chainNames[:], name); k >= 0 {
			e.Refused[ChainKind(k)] = printable.Clean(why)
		}
	}
	return e, nil
}
