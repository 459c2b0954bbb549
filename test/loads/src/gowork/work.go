// Command work does a little of what ordinary Go programs do, in turn, and runs code of many packages.
package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"go/format"
	"io"
	"math/big"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"text/template"
	"time"
)

type order struct {
	ID    int               `json:"id" xml:"id,attr"`
	Name  string            `json:"name" xml:"name"`
	Price float64           `json:"price" xml:"price"`
	Lines []string          `json:"lines" xml:"line"`
	Tags  map[string]string `json:"tags" xml:"-"`
	At    time.Time         `json:"at" xml:"at"`
}

const code = `package shop
import ("fmt"; "sort")
type Cart struct { items map[string]int; total float64 }
func (c *Cart) Add(name string, n int) error { if n <= 0 { return fmt.Errorf("adding %q: %d", name, n) }
for i := 0; i < n; i++ { c.items[name]++ }; switch { case n > 10: c.total *= 0.9; default: c.total += float64(n) }; return nil }
func (c *Cart) Names() (names []string) { for n := range c.items { names = append(names, n) }; sort.Strings(names); return }
`

var (
	words = regexp.MustCompile(`(\w+)-(\d{2,4})(?:x|y)?`)
	page  = template.Must(template.New("page").Parse(`{{range .}}<p>{{.Name | printf "%-20s"}} {{if gt .Price 10.0}}dear{{else}}cheap{{end}} {{len .Lines}}</p>{{end}}`))
)

func orders(n int) []order {
	all := make([]order, n)
	for i := range all {
		all[i] = order{
			ID: i, Name: "order-" + strconv.Itoa(i*7919%1009), Price: float64(i) * 1.37, Lines: strings.Fields(fmt.Sprintf("a%d b%x c%08.3f", i, i*i, float64(i)/3)),
			Tags: map[string]string{"k" + strconv.Itoa(i%7): "v"}, At: time.Unix(int64(i)*86_399, 0).UTC(),
		}
	}
	return all
}

func encode(all []order) int {
	text, err := json.Marshal(all)
	check(err)
	var back []order
	check(json.Unmarshal(text, &back))
	var loose any
	check(json.Unmarshal(text, &loose))
	marked, err := xml.MarshalIndent(back[:20], "", " ")
	check(err)
	var one struct{ XMLName xml.Name }
	_ = xml.Unmarshal(marked, &one)
	return len(marked)
}

func pack(all []order) int {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	for i := range all {
		fmt.Fprintf(w, "%+v %q %x\n", all[i], all[i].Name, all[i].ID)
	}
	check(w.Close())
	r, err := gzip.NewReader(&b)
	check(err)
	h := sha256.New()
	n, err := io.Copy(h, r)
	check(err)
	return int(n) + len(hex.EncodeToString(h.Sum(nil)))
}

func text(all []order) int {
	var b strings.Builder
	check(page.Execute(&b, all))
	for i := range all {
		b.WriteString(words.ReplaceAllString(all[i].Name, "$2:$1"))
		b.WriteString(strings.ToUpper(strings.Map(func(r rune) rune { return r + 1 }, all[i].Name)))
		b.WriteString(all[i].At.Format(time.RFC1123Z))
	}
	return b.Len()
}

func numbers() int {
	a, b := big.NewInt(1), new(big.Int).Lsh(big.NewInt(1), 600)
	for i := range int64(60) {
		a.Mul(a, big.NewInt(i*i+3))
	}
	a.Exp(a, big.NewInt(65537), b.Sub(b, big.NewInt(1)))
	var raw [8]byte
	n := 0
	for i := range uint64(300) {
		binary.LittleEndian.PutUint64(raw[:], i*0x9e3779b97f4a7c15)
		f, _ := strconv.ParseFloat(strconv.FormatFloat(float64(binary.BigEndian.Uint64(raw[:]))/7, 'g', -1, 64), 64)
		n += int(f) & 1
	}
	return len(a.String()) + n
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	for round := 0; ; round++ {
		all := orders(200 + round%50)
		n := encode(all) + pack(all) + text(all) + numbers()
		sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
		formatted, err := format.Source([]byte(code))
		check(err)
		if n+len(formatted) == 0 {
			panic("nothing")
		}
		if round == 0 {
			fmt.Println("ready")
		}
	}
}
