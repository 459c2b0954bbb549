// registry is an in-memory OCI registry for the test cluster.
package main

import (
	"flag"
	"log"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:5000", "`address` to serve on")
	flag.Parse()
	server := &http.Server{Addr: *listen, Handler: registry.New(), ReadHeaderTimeout: 10 * time.Second}
	log.Fatal(server.ListenAndServe())
}
