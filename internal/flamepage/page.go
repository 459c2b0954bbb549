// Package flamepage writes samples as one page for a browser. The page shows a flame graph with search, callers and callees, a
// table, and the difference between two profiles. The page is one self-contained file. Its content security policy forbids it
// to load or send anything.
//
// The script and the style come from web, bundled into dist by "make page". They treat everything from samples as text.
package flamepage

import (
	"crypto/sha256"
	_ "embed" // the page's parts
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"strings"
	"time"

	"github.com/ig-otel-profiles/ig-otel-profiles/internal/receiver"
)

var (
	//go:embed page.html
	body string
	//go:embed dist/page.js
	script string
	//go:embed dist/page.css
	style string
	//go:embed dist/licences.txt
	licences string
)

// Page describes the page to write. The samples of all sides must have the same type.
type Page struct {
	// Title and Subtitle are the page's headings.
	Title, Subtitle string
	// Sides is one profile, or two to compare, the earlier one first.
	Sides []Side
	// Unit is the unit of the scaled amounts. By default, it is s if the samples measure time, or else the counted thing.
	Unit string
	// Step is the length of the profiles, or 0. If it is set, the page has a timeline of their values, on which a reader can
	// choose a range.
	Step time.Duration
	// From is the start of a step, or zero.
	From time.Time
	// Own adds the values of each own function (report.Own) to the table, and sorts the table by them.
	Own bool
	// Interpreters initially shows the frames that report.Interpreter returns. The page always has a switch for them.
	Interpreters bool
}

// Side is a profile.
type Side struct {
	Samples []receiver.Sample
	// Scale multiplies the amounts, to make two sides comparable. 0 means 1.
	Scale float64
}

// Write writes the page.
func Write(w io.Writer, p Page) error {
	data, err := json.Marshal(newData(p))
	if err != nil {
		return fmt.Errorf("writing the flame graph: %w", err)
	}
	policy := "default-src 'none'; script-src " + hash(script) + "; style-src " + hash(style) + "; img-src data:; base-uri 'none'; form-action 'none'"
	start := strings.Join([]string{
		"<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">",
		`<meta http-equiv="Content-Security-Policy" content="` + policy + `">`,
		`<meta name="viewport" content="width=device-width, initial-scale=1">`,
		`<link rel="icon" href="data:,">`,
		"<title>" + html.EscapeString(p.Title) + "</title>",
		"<style>" + style + "</style></head><body>",
		strings.Replace(body, "LICENCES", html.EscapeString(licences), 1),
		`<script type="application/json" id="data">`,
	}, "\n")
	// json.Marshal escapes <, > and &, so the data cannot close its HTML element.
	for _, part := range [][]byte{[]byte(start), data, []byte("</script>\n<script>" + script + "</script></body></html>\n")} {
		if _, err := w.Write(part); err != nil {
			return fmt.Errorf("writing the flame graph: %w", err)
		}
	}
	return nil
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
