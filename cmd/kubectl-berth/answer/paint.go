// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"io"
	"os"
)

// Paint colours text, or leaves it as it is: state is never shown by colour alone.
type Paint bool

// PaintOf returns the Paint for an output: colours on a terminal, unless the user set
// NO_COLOR (no-color.org) or the terminal is dumb.
func PaintOf(out io.Writer) Paint {
	file, ok := out.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Red, Yellow and Green colour text.
func (p Paint) Red(text string) string { return p.with("31", text) }

// Yellow marks possible problems.
func (p Paint) Yellow(text string) string { return p.with("33", text) }

// Green marks healthy states.
func (p Paint) Green(text string) string { return p.with("32", text) }

func (p Paint) with(code, text string) string {
	if !p || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
