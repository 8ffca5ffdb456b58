// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/berth-dev/berth/cmd/kubectl-berth/circulation/freeing"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/access"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/api"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
)

// releasePath is the path to which forms post addresses to free.
const releasePath = "/release"

// mostForm is the length of a form: that of the addresses of a page, and more.
const mostForm = 64 << 10

// releaseForm asks what would become of freed addresses. Seen are they as the page shows them.
type releaseForm struct {
	Seen  []string
	Words string
}

// releaseOf returns the form; nil if no address may be freed, or the console only reads.
func (s *site) releaseOf(words string, addresses ...standing.Address) *releaseForm {
	form := &releaseForm{Words: words}
	for i := range addresses {
		if a := &addresses[i]; s.ReadOnly == "" && (a.State == standing.Retained || a.State == standing.Cooling) {
			form.Seen = append(form.Seen, seenText(a.Address, a.UID, a.ResourceVersion))
		}
	}
	if len(form.Seen) == 0 {
		return nil
	}
	return form
}

// seenText is an address as a form has it. None of the parts has a space.
func seenText(address, uid, version string) string {
	return strings.Join([]string{address, uid, version}, " ")
}

type releaseData struct {
	Lead     string
	Releases []freeing.Release
	// Seen are those that can be freed, if the user has not confirmed it yet.
	Seen         []string
	Words        string
	Back, BackTo string
	Commands     []register.Command
}

// release frees addresses if the user has confirmed it, and else asks whether the API server would.
func (s *site) release(r *request) (*view, error) {
	if err := r.ParseForm(); err != nil {
		return nil, &mistake{http.StatusBadRequest, "Not understood", "The form cannot be read: " + err.Error() + "."}
	}
	as := access.WriterOf(r.Context())
	if s.ReadOnly != "" || as == nil {
		return nil, &mistake{http.StatusForbidden, "Read only", "This console only reads: " + s.ReadOnly + "."}
	}
	var seen []api.Seen
	for _, text := range r.PostForm["seen"] {
		parts := strings.Split(text, " ")
		if len(parts) != 3 {
			return nil, &mistake{http.StatusBadRequest, "Not understood", fmt.Sprintf("%q is no address as a page has it.", text)}
		}
		seen = append(seen, api.Seen{Address: parts[0], UID: parts[1], ResourceVersion: parts[2]})
	}
	confirmed := r.PostForm.Get("confirmed") == "yes"
	ctx, cancel := context.WithTimeout(r.Context(), api.WriteTimeout)
	defer cancel()
	releases, err := api.Release(ctx, as, seen, !confirmed)
	if err != nil {
		return nil, &mistake{http.StatusBadRequest, "Not understood", sentence(err.Error())}
	}
	data := releaseData{Releases: releases, Back: find("state", string(standing.Retained)), BackTo: "the retained addresses"}
	if len(releases) == 1 {
		data.Back, data.BackTo = addressURL(releases[0].Address), releases[0].Address
	}
	title := "Released"
	if confirmed {
		data.Lead = released(releases)
	} else {
		title = "Release?"
		s.ask(&data)
	}
	return &view{template: "release", title: title, still: true, data: data}, nil
}

func (s *site) ask(data *releaseData) {
	words := []string{"kubectl berth release"}
	for i := range data.Releases {
		if one := &data.Releases[i]; one.Outcome == freeing.ToFree {
			data.Seen = append(data.Seen, seenText(one.Address, one.UID, one.ResourceVersion))
			words = append(words, one.Address)
		}
	}
	data.Words = count(len(data.Seen), "address", "addresses")
	data.Lead = "Nothing of this can be released."
	if len(data.Seen) > 0 {
		data.Lead = fmt.Sprintf("The API server would release %s. Nothing is done yet.", data.Words)
		data.Commands = []register.Command{{To: "do it in a terminal", Command: strings.Join(words, " ")}}
	}
}

func released(releases []freeing.Release) string {
	freed, left := 0, 0
	for i := range releases {
		switch releases[i].Outcome {
		case freeing.Freed:
			freed++
		case freeing.Left:
			left++
		}
	}
	text := count(freed, "address is released", "addresses are released")
	if left > 0 {
		text += ", and " + count(left, "is left as it is", "are left as they are")
	}
	return text + "."
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return number(n) + " " + many
}

var outcomes = map[freeing.Outcome]string{freeing.ToFree: "Would be released", freeing.Freed: "Released", freeing.Gone: "Is free already", freeing.Left: "Left as it is"}
