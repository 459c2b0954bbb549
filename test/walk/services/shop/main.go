// Shop measures the work of each of its functions: see test/walk/doc.go.
package main

import (
	"bufio"
	"encoding/json"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// account holds each function's amount, by question.
var account = map[string]map[string]float64{"cpu": {}, "offcpu": {}, "lock": {}, "alloc": {}, "pagefault": {}}

var accounting, stock sync.Mutex

func add(question, name string, amount float64) {
	accounting.Lock()
	defer accounting.Unlock()
	account[question][name] += amount
}

func usage() (cpu float64, faults int64) {
	var u syscall.Rusage
	const thread = 1 // RUSAGE_THREAD
	if err := syscall.Getrusage(thread, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds(), u.Minflt
}

// call calls a function, and adds the thread's work during the call to the account.
func call(name string, function func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	wall := time.Now()
	cpu, faults := usage()
	function()
	after, more := usage()
	add("cpu", name, after-cpu)
	add("offcpu", name, time.Since(wall).Seconds()-(after-cpu))
	add("pagefault", name, float64(more-faults))
}

func priceOrder() {
	total := 1
	for i := range 24_000_000 {
		total = total*31 + i
	}
	runtime.KeepAlive(total)
}

func renderInvoice() {
	text := ""
	for i := range 500_000 {
		text = strconv.Itoa(i)
	}
	runtime.KeepAlive(text)
}

// askBank waits in a system call, because no thread waits for a parked goroutine.
func askBank() {
	t := syscall.Timespec{Nsec: 30_000_000}
	_ = syscall.Nanosleep(&t, nil) // interrupted, it waits for a shorter time
}

func askStock() {
	timeout := syscall.Timeval{Usec: 10_000}
	_, _ = syscall.Select(0, nil, nil, nil, &timeout) // interrupted, it waits for a shorter time
}

func takeLock(name string) {
	before := time.Now()
	stock.Lock()
	add("lock", name, time.Since(before).Seconds())
	stock.Unlock()
}

func bookOrder() {
	for range 3 {
		takeLock("bookOrder")
		time.Sleep(time.Millisecond)
	}
}

func refundOrder() { takeLock("refundOrder") }

var kept [][]byte

func keep(name string, size int) {
	kept = nil
	for range 1000 {
		kept = append(kept, make([]byte, size))
	}
	add("alloc", name, 1000*float64(size))
}

// keepBasket allocates 4 MB, and keepReceipt 1 MB.
func keepBasket() { keep("keepBasket", 4096) }

func keepReceipt() { keep("keepReceipt", 1024) }

func touch(pages int) {
	fresh, err := syscall.Mmap(-1, 0, pages*os.Getpagesize(), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		panic(err)
	}
	for i := range pages {
		fresh[i*os.Getpagesize()] = 1
	}
	if err := syscall.Munmap(fresh); err != nil {
		panic(err)
	}
}

func loadCatalogue() { touch(3000) }

func loadPrices() { touch(1000) }

func countStock() {
	stock.Lock()
	defer stock.Unlock()
	time.Sleep(4 * time.Millisecond)
}

func warehouse() {
	for {
		countStock()
		time.Sleep(2 * time.Millisecond)
	}
}

func serve() {
	for {
		call("priceOrder", priceOrder)
		call("renderInvoice", renderInvoice)
		call("askBank", askBank)
		call("askStock", askStock)
		bookOrder()
		refundOrder()
		call("keepBasket", keepBasket)
		call("keepReceipt", keepReceipt)
		call("loadCatalogue", loadCatalogue)
		call("loadPrices", loadPrices)
	}
}

func main() {
	go warehouse()
	go serve()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		accounting.Lock()
		if err := json.NewEncoder(os.Stdout).Encode(account); err != nil {
			panic(err)
		}
		accounting.Unlock()
	}
}
