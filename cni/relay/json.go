// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Package encoding/json takes longer to start than the rest of berth-cni, which needs only little
// of it: a value of the configuration, and a string in an error. The agent decodes the whole
// configuration and refuses an invalid one.

var (
	errNoObject = errors.New("it is no JSON object")
	errNoString = errors.New("its socket is no path")
)

// SocketOf returns the value of socket in the object config, or the default path.
func SocketOf(config []byte) (string, error) {
	r := reader{config: config, socket: SocketPath}
	for r.at = 0; r.at < len(config); r.at++ {
		if err := r.step(config[r.at]); err != nil {
			return "", err
		}
	}
	if r.depth != 0 || len(config) == 0 {
		return "", errNoObject
	}
	if r.socket == "" {
		return SocketPath, nil
	}
	return r.socket, nil
}

// reader reads a configuration up to the outer object's "socket".
type reader struct {
	config []byte
	at     int
	depth  int
	// key is the key of the value that follows, in the outer object.
	key    string
	socket string
}

func (r *reader) step(c byte) error {
	switch c {
	case ' ', '\t', '\r', '\n':
	case '{', '[':
		if r.depth == 0 && c == '[' {
			return errNoObject
		}
		r.depth++
		r.key = ""
	case '}', ']':
		r.depth--
		if r.depth < 0 {
			return errNoObject
		}
		r.key = ""
	case '"':
		return r.text()
	case ':':
		value := strings.TrimLeft(string(r.config[r.at+1:]), " \t\r\n")
		if r.depth == 1 && r.key == "socket" && !strings.HasPrefix(value, `"`) && !strings.HasPrefix(value, "null") {
			return errNoString
		}
	case ',':
		r.key = ""
	default:
		if r.depth == 0 {
			return errNoObject
		}
	}
	return nil
}

// text reads a string: a key, or a value of the outer object.
func (r *reader) text() error {
	end := endOfString(r.config, r.at)
	if end < 0 || r.depth == 0 {
		return errNoObject
	}
	text := string(r.config[r.at+1 : end])
	r.at = end
	switch {
	case r.depth != 1:
	case isKey(r.config[end+1:]):
		r.key = text
	case r.key == "socket":
		socket, err := unquote(text)
		if err != nil {
			return errNoString
		}
		r.socket = socket
	}
	return nil
}

// endOfString returns the index of the quote that ends the string beginning at i, or -1.
func endOfString(config []byte, i int) int {
	for j := i + 1; j < len(config); j++ {
		switch config[j] {
		case '\\':
			j++
		case '"':
			return j
		}
	}
	return -1
}

// isKey reports whether a string is a key, by the text after it.
func isKey(rest []byte) bool {
	return strings.HasPrefix(strings.TrimLeft(string(rest), " \t\r\n"), ":")
}

// unquote returns a JSON string without its escapes, which equal Go's except one. It does not
// support surrogate pairs, the escapes of characters above U+FFFF.
func unquote(text string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+1 < len(text) {
			i++
			if text[i] != '/' {
				b.WriteByte('\\')
			}
		}
		b.WriteByte(text[i])
	}
	return strconv.Unquote(`"` + b.String() + `"`)
}

// Quote returns text as a JSON string.
func Quote(text string) string {
	const hex = "0123456789abcdef"
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ':
			b.WriteString(`\u00`)
			b.Write([]byte{hex[r>>4], hex[r&15]})
		case r == utf8.RuneError:
			b.WriteString(`\ufffd`)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
