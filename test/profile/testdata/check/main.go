// check spends known shares of its time in ten functions, in random order. price takes a tenth. The argument makes price
// slower, in percent. The program runs until it is killed.
package main

import (
	"math/rand/v2"
	"os"
	"strconv"
)

var state uint64

//go:noinline
func price(n int) { // 10 %
	for range n {
		state = state*6364136223846793005 + 1
	}
}

//go:noinline
func parse(n int) { // 20 %
	for range n {
		state = state*6364136223846793005 + 2
	}
}

//go:noinline
func encode(n int) { // 15 %
	for range n {
		state = state*6364136223846793005 + 3
	}
}

//go:noinline
func hash(n int) { // 12 %
	for range n {
		state = state*6364136223846793005 + 4
	}
}

//go:noinline
func lookup(n int) { // 10 %
	for range n {
		state = state*6364136223846793005 + 5
	}
}

//go:noinline
func compress(n int) { // 9 %
	for range n {
		state = state*6364136223846793005 + 6
	}
}

//go:noinline
func render(n int) { // 8 %
	for range n {
		state = state*6364136223846793005 + 7
	}
}

//go:noinline
func sign(n int) { // 7 %
	for range n {
		state = state*6364136223846793005 + 8
	}
}

//go:noinline
func validate(n int) { // 5 %
	for range n {
		state = state*6364136223846793005 + 9
	}
}

//go:noinline
func audit(n int) { // 4 %
	for range n {
		state = state*6364136223846793005 + 10
	}
}

func main() {
	slower, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	const percent = 2000 // turns of a loop
	jobs := []struct {
		run   func(int)
		turns int
	}{
		{price, 10 * percent * (100 + slower) / 100}, {parse, 20 * percent}, {encode, 15 * percent}, {hash, 12 * percent}, {lookup, 10 * percent},
		{compress, 9 * percent}, {render, 8 * percent}, {sign, 7 * percent}, {validate, 5 * percent}, {audit, 4 * percent},
	}
	for {
		rand.Shuffle(len(jobs), func(i, j int) { jobs[i], jobs[j] = jobs[j], jobs[i] })
		for _, j := range jobs {
			j.run(j.turns)
		}
	}
}
