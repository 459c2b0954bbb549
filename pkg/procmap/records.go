package procmap

import (
	"bytes"
	"encoding/binary"
)

// parseRecord parses these kernel records. linux/perf_event.h names them PERF_RECORD_*.
const (
	recordLost  = 2
	recordComm  = 3
	recordExit  = 4
	recordFork  = 7
	recordMmap2 = 10

	miscExec    = 1 << 13 // PERF_RECORD_MISC_COMM_EXEC
	miscBuildID = 1 << 14 // PERF_RECORD_MISC_MMAP_BUILD_ID
	protExec    = 4       // PROT_EXEC

	headerSize = 8
	// trailerSize is the number of bytes that sample_id_all appends with PERF_SAMPLE_TID and PERF_SAMPLE_TIME: process, thread,
	// time.
	trailerSize = 16
)

// event is an event of a process.
type event struct {
	kind int // one of recordLost, recordComm (an execve), recordExit, recordFork, recordMmap2
	time uint64
	pid  uint32
	// parent is set for a fork.
	parent uint32
	// These are set for a mapping.
	start, end, offset uint64
	file               fileKey
	// lost is the number of missing records.
	lost uint64
}

// parseRecord parses a record with its header. It returns false for an irrelevant or invalid record.
func parseRecord(b []byte) (e event, ok bool) {
	if len(b) < headerSize+trailerSize {
		return e, false
	}
	order := binary.NativeEndian
	kind, misc := order.Uint32(b), order.Uint16(b[4:])
	body, trailer := b[headerSize:len(b)-trailerSize], b[len(b)-trailerSize:]
	e.kind, e.time = int(kind), order.Uint64(trailer[8:])
	switch kind {
	case recordLost: // id, lost
		if len(body) < 16 {
			return e, false
		}
		e.lost = order.Uint64(body[8:])
		return e, true
	case recordComm: // pid, tid, name
		if len(body) < 8 || misc&miscExec == 0 {
			return e, false
		}
		e.pid = order.Uint32(body)
		return e, true
	case recordFork, recordExit: // pid, ppid, tid, ptid, time
		if len(body) < 24 {
			return e, false
		}
		e.pid, e.parent = order.Uint32(body), order.Uint32(body[4:])
		return e, e.pid == order.Uint32(body[8:]) // otherwise it is a thread
	case recordMmap2: // pid, tid, addr, len, pgoff, maj, min, ino, ino_generation, prot, flags, filename
		const fixed = 64
		if len(body) < fixed || misc&miscBuildID != 0 || order.Uint32(body[56:])&protExec == 0 {
			return e, false
		}
		e.pid = order.Uint32(body)
		e.start, e.offset = order.Uint64(body[8:]), order.Uint64(body[24:])
		e.end = e.start + order.Uint64(body[16:])
		if e.end <= e.start || e.start >= 1<<63 {
			return e, false
		}
		name, _, _ := bytes.Cut(body[fixed:], []byte{0})
		e.file = newFileKey(order.Uint32(body[32:]), order.Uint32(body[36:]), order.Uint64(body[40:]), string(name))
		e.file.generation = order.Uint64(body[48:])
		return e, true
	}
	return e, false
}
