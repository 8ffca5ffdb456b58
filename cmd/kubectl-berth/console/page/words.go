// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"html/template"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/berth-dev/berth/cmd/kubectl-berth/circulation/freeing"
	"github.com/berth-dev/berth/cmd/kubectl-berth/pool/poolmap"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
)

var functions = template.FuncMap{
	"asset": func(name string) string { return shared()[name] }, "number": number, "stamp": stampOf, "addressURL": addressURL, "poolURL": poolURL, "find": find, "outcome": func(of freeing.Outcome) string { return outcomes[of] },
	"lower": func(v any) string { return strings.ToLower(fmt.Sprint(v)) }, "id": id,
	"selector": metav1.FormatLabelSelector,
	"state":    func(of standing.State) template.HTML { return new(markup).state(of).html() },
	"mark":     func(class, word string) template.HTML { return new(markup).mark(class, word).html() },
	"age":      func(at any) template.HTML { return new(markup).time(at).html() },
	"command":  func(command string) template.HTML { return new(markup).command(command).html() },
	"bar": func(counts poolmap.Counts, capacity uint64) template.HTML {
		return new(markup).bar(barOf(counts, capacity)).html()
	},
	"percent": func(counts poolmap.Counts, capacity uint64) string { return percent(counts.Taken(), capacity) },
}

// number writes a number with its thousands apart. A register counts to 2^63-1.
func number(v any) string {
	text := fmt.Sprint(v)
	if text == strconv.FormatUint(math.MaxInt64, 10) {
		return "> 9\u00a0×\u00a010¹⁸"
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// percent says how much of a whole a part is. It is 0 % and 100 % for none and all only.
func percent(part, whole uint64) string {
	switch share := float64(part) / float64(whole) * 100; {
	case whole == 0 || part == 0:
		return "0 %"
	case part >= whole:
		return "100 %"
	case share < 1:
		return "< 1 %"
	case share > 99:
		return "> 99 %"
	default:
		return fmt.Sprintf("%.0f %%", share)
	}
}

// sentence makes a sentence of a message.
func sentence(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	text = string(unicode.ToUpper(first)) + text[size:]
	if text != "" && !strings.ContainsAny(text[len(text)-1:], ".!?") {
		text += "."
	}
	return text
}

// now is replaced in tests.
var now = time.Now

// stamp is a moment, as age and in full.
type stamp struct{ ISO, Full, Age string }

func stampOf(at any) *stamp {
	var t time.Time
	switch at := at.(type) {
	case time.Time:
		t = at
	case *metav1.Time:
		if at != nil {
			t = at.Time
		}
	}
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	age := duration.HumanDuration(now().Sub(t)) + " ago"
	if left := t.Sub(now()); left > 0 {
		age = "in " + duration.HumanDuration(left)
	}
	return &stamp{t.Format(time.RFC3339), t.Format("2006-01-02 15:04:05 UTC"), age}
}

func addressURL(address string) string { return "/addresses/" + url.PathEscape(address) }

func poolURL(name string) string { return "/pools/" + url.PathEscape(name) }

// find returns the URL of the addresses with a value of a parameter, and of more.
func find(parameter, value string, more ...string) string {
	if value == "" {
		return "/addresses"
	}
	query := []string{parameter + "=" + url.QueryEscape(value)}
	for i := 0; i+1 < len(more); i += 2 {
		query = append(query, more[i]+"="+url.QueryEscape(more[i+1]))
	}
	return "/addresses?" + strings.Join(query, "&")
}

// id makes an id of names, by which a row is known again after a change.
func id(parts ...string) string {
	var b strings.Builder
	for i, part := range parts {
		if i > 0 {
			b.WriteByte('_')
		}
		for _, r := range part {
			switch {
			case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '.', r == ':':
				b.WriteRune(r)
			default:
				fmt.Fprintf(&b, "~%x~", r)
			}
		}
	}
	return b.String()
}

type bar struct {
	Label    string
	Segments []segment
}

// segment is a part of a bar, in per cent of it.
type segment struct{ Class, X, Width string }

// barOf draws counts of a whole. A part that there is can be seen.
func barOf(counts poolmap.Counts, capacity uint64) *bar {
	b := &bar{Label: fmt.Sprintf("%s of %s taken: %s held, %s retained, %s reserved, %s cooling", number(counts.Taken()), number(capacity),
		number(counts.Held), number(counts.Retained), number(counts.Reserved), number(counts.Cooling))}
	x := 0.0
	for _, part := range []struct {
		class string
		count uint64
	}{{"held", counts.Held}, {"retained", counts.Retained}, {"reserved", counts.Reserved}, {"cooling", counts.Cooling}} {
		if part.count == 0 || capacity == 0 {
			continue
		}
		width := min(max(float64(part.count)/float64(capacity)*100, 0.6), 100-x)
		b.Segments = append(b.Segments, segment{part.class, fmt.Sprintf("%.2f%%", x), fmt.Sprintf("%.2f%%", width)})
		x += width
	}
	return b
}
