// Package contexttest publishes the context of its process for tests, as OTEP 4719 specifies for an SDK:
// https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/profiles/4719-process-ctx.md.
package contexttest

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"unsafe"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Name is the name of the mapping, and the signature at its beginning.
const Name = "OTEL_CTX"

// Version is the version of the format.
const Version = 2

// Published is the context of this process. Its methods are not safe for concurrent use.
type Published struct {
	// Header is the mapping: signature, version, size of the payload, time, and the address of the payload.
	Header  []byte
	payload []byte
	pinned  runtime.Pinner
}

// Payload returns an encoded ProcessContext message whose resource has these attributes.
func Payload(attributes map[string]string) []byte {
	resource := new(resourcepb.Resource)
	for key, value := range attributes {
		resource.Attributes = append(resource.Attributes, &commonpb.KeyValue{
			Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: value}},
		})
	}
	b, err := proto.Marshal(resource)
	if err != nil {
		panic(err) // every value can be encoded
	}
	const field = 1 // ProcessContext.resource
	return protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), b)
}

// Publish publishes a payload.
func Publish(payload []byte) (*Published, error) {
	size := os.Getpagesize()
	header, err := mapping(size)
	if err != nil {
		return nil, err
	}
	if err := unix.Madvise(header, unix.MADV_DONTFORK); err != nil {
		return nil, fmt.Errorf("excluding the context from child processes: %w", err)
	}
	p := &Published{Header: header}
	copy(header, Name)
	binary.NativeEndian.PutUint32(header[8:], Version)
	p.Update(payload)
	return p, nil
}

// mapping maps a memfd, or anonymous memory if memfd is not available.
func mapping(size int) ([]byte, error) {
	fd, err := unix.MemfdCreate(Name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, err
	}
	return unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
}

// Update publishes another payload.
func (p *Published) Update(payload []byte) {
	published := p.Begin()
	p.pinned.Unpin()
	p.payload = slices.Clone(payload)
	p.pinned.Pin(&p.payload[0])
	binary.NativeEndian.PutUint32(p.Header[12:], uint32(len(p.payload)))
	binary.NativeEndian.PutUint64(p.Header[24:], uint64(uintptr(unsafe.Pointer(&p.payload[0]))))
	p.end(published)
}

func (p *Published) time() *uint64 { return (*uint64)(unsafe.Pointer(&p.Header[16])) }

// Begin starts a change, and returns the time of the previous change.
func (p *Published) Begin() uint64 { return atomic.SwapUint64(p.time(), 0) }

// end finishes a change.
func (p *Published) end(before uint64) {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		now = unix.Timespec{}
	}
	atomic.StoreUint64(p.time(), max(uint64(now.Nano()), before+1))
	name := []byte(Name + "\x00")
	// Not all kernels can name a mapping.
	_, _, _ = unix.Syscall6(unix.SYS_PRCTL, unix.PR_SET_VMA, unix.PR_SET_VMA_ANON_NAME, uintptr(unsafe.Pointer(&p.Header[0])),
		uintptr(len(p.Header)), uintptr(unsafe.Pointer(&name[0])), 0)
}

// Close removes the context.
func (p *Published) Close() error {
	p.pinned.Unpin()
	return unix.Munmap(p.Header)
}
