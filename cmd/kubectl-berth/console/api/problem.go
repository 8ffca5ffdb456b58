// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
)

// Problem is an answer to a request that is not done, by RFC 9457. Its type is about:blank, so that
// the title is that of the status.
type Problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

// Refuse answers a request that is not done.
func Refuse(w http.ResponseWriter, status int, detail string) {
	text, err := json.Marshal(Problem{http.StatusText(status), status, detail})
	if err != nil {
		panic(err) // it has plain fields
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = w.Write(text) // the client is gone
}

// MistakeError is a mistake in a request.
type MistakeError string

func (m MistakeError) Error() string { return string(m) }

func mistake(format string, args ...any) error { return MistakeError(fmt.Sprintf(format, args...)) }

// refusal is another reason why a request is not done.
type refusal struct {
	status int
	detail string
}

func (r *refusal) Error() string { return r.detail }

// StatusOf returns the status that an error means: a mistake, or one of the register.
func StatusOf(err error) int {
	var mistake MistakeError
	var refused *refusal
	switch {
	case errors.As(err, &refused):
		return refused.status
	case errors.As(err, &mistake):
		return http.StatusBadRequest
	case errors.Is(err, register.ErrNoPool), errors.Is(err, register.ErrNoMap), errors.Is(err, register.ErrNoClaim):
		return http.StatusNotFound
	case errors.Is(err, register.ErrPage):
		return http.StatusBadRequest
	case errors.Is(err, register.ErrHidden):
		return http.StatusForbidden
	}
	return http.StatusInternalServerError
}
