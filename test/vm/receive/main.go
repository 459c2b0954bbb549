// receive is an OTLP receiver for the virtual machine. It writes every request to profiles.jsonl, and violations of the
// protocol to findings.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:4317", "`address` to serve gRPC on")
	dir := flag.String("dir", ".", "`folder` for the files")
	flag.Parse()
	log.SetFlags(0)

	r, err := receiver.Start(receiver.Options{GRPCAddr: *listen, Dir: *dir})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	<-ctx.Done()
	if err := r.Close(); err != nil {
		log.Fatal(err)
	}
	log.Printf("%+v", r.Stats())
	var findings strings.Builder
	for _, finding := range r.Findings() {
		fmt.Fprintln(&findings, finding)
	}
	if err := os.WriteFile(filepath.Join(*dir, "findings"), []byte(findings.String()), 0o600); err != nil {
		log.Fatal(err)
	}
}
