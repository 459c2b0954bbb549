// published publishes its process context, with the service from its argument. It burns some CPU time until its standard input
// ends.
package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/contexttest"
)

var sink uint32 //nolint:unused // Storing results in it keeps the compiler from removing the work.

func main() {
	published, err := contexttest.Publish(contexttest.Payload(map[string]string{
		"service.name": os.Args[1], "service.namespace": "shop", "service.instance.id": "instance-1", "service.version": "1.2",
		"deployment.environment.name": "prod", "host.name": "elsewhere", "k8s.pod.name": "another", "container.id": "another",
	}))
	if err != nil {
		fmt.Fprintln(os.Stderr, "published:", err)
		os.Exit(1)
	}
	go func() {
		for {
			work()
			time.Sleep(100 * time.Millisecond)
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = published.Close()
}

//go:noinline
func work() {
	x := uint32(1)
	for i := range uint32(20_000_000) {
		x = x*31 + i
	}
	sink = x
}
