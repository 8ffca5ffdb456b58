// SPDX-License-Identifier: Apache-2.0

package referencetest

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
)

// Command is a page of a command and all below it: the purpose, usage, examples and
// flags of each.
func Command(command *cobra.Command) string {
	var b strings.Builder
	section(&b, command, "#")
	return b.String()
}

func section(b *strings.Builder, command *cobra.Command, level string) {
	fmt.Fprintf(b, "%s %s\n\n%s\n", level, command.CommandPath(), text(description(command)))
	if command.Runnable() {
		fmt.Fprintf(b, "\n    %s\n", command.UseLine())
	}
	if command.Example != "" {
		fmt.Fprintf(b, "\nExamples:\n\n%s\n", indented(command.Example))
	}
	flags(b, command.NonInheritedFlags())
	for _, child := range command.Commands() {
		if !child.Hidden && !generic(child) {
			b.WriteString("\n")
			section(b, child, "##")
		}
	}
}

// generic says that a command is cobra's and the same in every program.
func generic(command *cobra.Command) bool {
	return command.Name() == "help" || command.Name() == "completion"
}

func description(command *cobra.Command) string {
	if command.Long != "" {
		return strings.TrimSpace(command.Long)
	}
	return strings.TrimSuffix(command.Short, ".") + "."
}

// text is plain text as Markdown, in which only brackets of placeholders mean something.
func text(plain string) string {
	return strings.NewReplacer("<", `\<`, "|", `\|`, "*", `\*`).Replace(plain)
}

// indented is code, with the least indentation of its lines replaced by four blanks.
func indented(code string) string {
	lines := strings.Split(strings.Trim(code, "\n"), "\n")
	least := -1
	for _, line := range lines {
		if blanks := len(line) - len(strings.TrimLeft(line, " ")); strings.TrimSpace(line) != "" && (least < 0 || blanks < least) {
			least = blanks
		}
	}
	for i, line := range lines {
		if lines[i] = ""; strings.TrimSpace(line) != "" {
			lines[i] = "    " + line[least:]
		}
	}
	return strings.Join(lines, "\n")
}

// flags adds a table, without kubectl's own flags, which are named only.
func flags(b *strings.Builder, set *pflag.FlagSet) {
	ofKubectl := pflag.NewFlagSet("kubectl", pflag.ContinueOnError)
	genericclioptions.NewConfigFlags(true).AddFlags(ofKubectl)
	rows, known := 0, []string(nil)
	set.VisitAll(func(flag *pflag.Flag) {
		if flag.Hidden || flag.Deprecated != "" || flag.Name == "help" {
			return
		}
		if same := ofKubectl.Lookup(flag.Name); same != nil && same.Usage == flag.Usage {
			known = append(known, "`--"+flag.Name+"`")
			return
		}
		if rows++; rows == 1 {
			b.WriteString("\n| flag | default | meaning |\n|---|---|---|\n")
		}
		value, usage := pflag.UnquoteUsage(flag)
		name := "`--" + flag.Name + "`"
		if flag.Shorthand != "" {
			name = "`-" + flag.Shorthand + "`, " + name
		}
		if value != "" {
			name += " " + value
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", name, byDefault(flag), text(strings.Join(strings.Fields(usage), " ")))
	})
	if len(known) > 0 {
		fmt.Fprintf(b, "\nAs in kubectl: %s.\n", strings.Join(known, ", "))
	}
}

// byDefault is the default of a flag, without values of this machine.
func byDefault(flag *pflag.Flag) string {
	switch flag.DefValue {
	case "", "[]", "0", "0s", "false":
		return ""
	}
	value := flag.DefValue
	if home, err := os.UserHomeDir(); err == nil {
		value = strings.ReplaceAll(value, home, "$HOME")
	}
	return "`" + value + "`"
}
