// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/berth-dev/berth/cni/relay"
)

// Package encoding/json takes longer to start than the rest of berth-cni, which needs little of
// it: one value of the configuration, and a string in an error. The agent decodes the whole
// configuration and refuses it where it is none.

var (
	errNoObject = errors.New("it is no JSON object")
	errNoString = errors.New("its socket is no path")
)

// socketOf returns the value of socket in the object config, or the default path.
func socketOf(config []byte) (string, error) {
	socket := relay.SocketPath
	depth, key := 0, ""
	for i := 0; i < len(config); i++ {
		switch c := config[i]; c {
		case ' ', '\t', '\r', '\n':
		case '{', '[':
			if depth == 0 && c == '[' {
				return "", errNoObject
			}
			depth++
			key = ""
		case '}', ']':
			depth--
			if depth < 0 {
				return "", errNoObject
			}
			key = ""
		case '"':
			end := endOfString(config, i)
			if end < 0 || depth == 0 {
				return "", errNoObject
			}
			text := string(config[i+1 : end])
			i = end
			switch {
			case depth != 1:
			case isKey(config[end+1:]):
				key = text
			case key == "socket":
				var err error
				if socket, err = unquote(text); err != nil {
					return "", errNoString
				}
			}
		case ':':
			value := strings.TrimLeft(string(config[i+1:]), " \t\r\n")
			if depth == 1 && key == "socket" && !strings.HasPrefix(value, `"`) && !strings.HasPrefix(value, "null") {
				return "", errNoString
			}
		case ',':
			key = ""
		default:
			if depth == 0 {
				return "", errNoObject
			}
		}
	}
	if depth != 0 || len(config) == 0 {
		return "", errNoObject
	}
	if socket == "" {
		socket = relay.SocketPath
	}
	return socket, nil
}

// endOfString returns the index of the quote that ends the string that begins at i, -1 where
// none does.
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

// isKey returns whether a string is a key by what follows it.
func isKey(rest []byte) bool {
	return strings.HasPrefix(strings.TrimLeft(string(rest), " \t\r\n"), ":")
}

// unquote returns a JSON string without its escapes, which are those of Go but for one. It knows
// no escapes of characters beyond the first 65,536, which have two.
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

// quote returns text as a JSON string.
func quote(text string) string {
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
