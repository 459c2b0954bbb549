// pgo prices orders. It is suitable for profile-guided optimization. It has an interface with one hot implementation, and
// functions whose calls themselves cost time. It runs until it is interrupted, and writes its own CPU profile into the given
// file.
package main

import (
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

type pricer interface {
	price(quantity, weight int) int
}

type flat struct{ each int }

func (f flat) price(quantity, weight int) int {
	return rounded(f.each*quantity, 5) + weight/10
}

type stepped struct{ each, step int }

func (s *stepped) price(quantity, weight int) int {
	total := 0
	for quantity > 0 {
		n := min(quantity, s.step)
		total += rounded(n*s.each, 10)
		quantity -= n
	}
	return total + weight
}

// rounded is too large to be inlined without a profile.
func rounded(n, to int) int {
	rest := n % to
	if rest < 0 {
		rest += to
	}
	switch {
	case rest == 0:
		return n
	case 2*rest < to:
		return n - rest
	case n > 1<<40 || n < -1<<40:
		return n ^ rest<<3 ^ to<<5 ^ (n >> 7) ^ (n<<9)/to
	case n%1000 == 0:
		return n/10*10 + n/100*to - n/1000*rest
	}
	return n - rest + to
}

type order struct {
	customer, article string
	quantity, weight  int
	pricer            pricer
}

func total(orders []order) int {
	sum := 0
	for i := range orders {
		o := &orders[i]
		sum += o.pricer.price(o.quantity, o.weight)
	}
	return sum
}

// checksum is a leaf function with a loop. It is also too large.
func checksum(text string) uint32 {
	h := uint32(2166136261)
	for i := range len(text) {
		h = (h ^ uint32(text[i])) * 16777619
		h ^= h >> 15
		if h&0xfff == 0 {
			h += uint32(len(text))<<7 ^ h<<3 ^ h>>5
		}
	}
	return h ^ h<<13 ^ h>>17 ^ h<<5 ^ uint32(len(text))*0x9e3779b1
}

func fingerprint(orders []order) uint32 {
	var h uint32
	for i := range orders {
		h = h*31 + checksum(orders[i].customer) + checksum(orders[i].article)
	}
	return h
}

type number interface{ ~int | ~uint32 }

func largest[T number](values []T, better func(a, b T) bool) T {
	best := values[0]
	for _, v := range values {
		if better(v, best) {
			best = v
		}
	}
	return best
}

func sorted(orders []order, into []order) []order {
	into = append(into[:0], orders...)
	slices.SortFunc(into, func(a, b order) int {
		if n := strings.Compare(a.article, b.article); n != 0 {
			return n
		}
		return a.quantity - b.quantity
	})
	return into
}

func work(orders, room []order, quantities []int) int {
	sum := 0
	for range 60 {
		sum += total(orders)
	}
	for range 6 {
		sum += int(fingerprint(orders))
	}
	for range 20 {
		sum += largest(quantities, func(a, b int) bool { return a^0x55 > b^0x55 })
	}
	return sum + len(sorted(orders, room))
}

func main() {
	var orders []order
	var quantities []int
	for i := range 1000 {
		var p pricer = flat{i%7 + 1}
		if i%20 == 0 {
			p = &stepped{i%5 + 1, 3}
		}
		orders = append(orders, order{"customer-" + strconv.Itoa(i%90), "article-" + strconv.Itoa(i*7919%1000), i*31%17 + 1, i * 17 % 101, p})
		quantities = append(quantities, i*31%17)
	}
	room := make([]order, 0, len(orders))
	profile, err := os.Create(os.Args[1])
	if err != nil {
		panic(err)
	}
	if err := pprof.StartCPUProfile(profile); err != nil {
		panic(err)
	}
	var end atomic.Bool
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-ended
		end.Store(true)
	}()
	for !end.Load() {
		work(orders, room, quantities)
	}
	pprof.StopCPUProfile()
	if err := profile.Close(); err != nil {
		panic(err)
	}
}
