// SPDX-License-Identifier: Apache-2.0

package referencetest

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// few is the number of commands from which on a flag of all of them is described once.
const few = 5

// Command returns a page of a command and all below it: the purpose, usage, examples and
// flags of each.
func Command(command *cobra.Command) string {
	p := page{commands: map[flag]int{}}
	p.count(command)
	p.section(command, "#")
	return p.String()
}

// page is a page while it is written. commands counts the commands that have a flag.
type page struct {
	strings.Builder
	commands map[flag]int
	shared   []flag
}

// flag is a flag as the page describes it.
type flag struct{ name, text string }

func (p *page) count(command *cobra.Command) {
	own, _ := flagsOf(command)
	for _, f := range own {
		if p.commands[f]++; p.commands[f] == few {
			p.shared = append(p.shared, f)
		}
	}
	for _, child := range below(command) {
		p.count(child)
	}
}

func (p *page) section(command *cobra.Command, level string) {
	fmt.Fprintf(p, "%s %s\n\n%s\n", level, command.CommandPath(), text(description(command)))
	if command.Runnable() {
		fmt.Fprintf(p, "\n    %s\n", command.UseLine())
	}
	if command.Example != "" {
		fmt.Fprintf(p, "\nExamples:\n\n%s\n", indented(command.Example))
	}
	p.flags(command)
	if level == "#" && len(p.shared) > 0 {
		p.WriteString("\nFlags of several commands:\n")
		p.table(p.shared)
	}
	for _, child := range below(command) {
		p.WriteString("\n")
		p.section(child, "##")
	}
}

// flags adds a table of the flags that few other commands have, and names the rest.
func (p *page) flags(command *cobra.Command) {
	all, foreign := flagsOf(command)
	var own []flag
	var shared []string
	for _, f := range all {
		if p.commands[f] >= few {
			shared = append(shared, f.name)
		} else {
			own = append(own, f)
		}
	}
	p.table(own)
	if len(shared) > 0 {
		fmt.Fprintf(p, "\nAs above: %s.\n", strings.Join(shared, ", "))
	}
	for _, of := range []string{"kubectl", "Kubernetes' components"} {
		if names := foreign[of]; len(names) > 0 {
			fmt.Fprintf(p, "\nAs in %s: %s.\n", of, strings.Join(names, ", "))
		}
	}
}

func (p *page) table(flags []flag) {
	if len(flags) == 0 {
		return
	}
	p.WriteString("\n| flag | default | meaning |\n|---|---|---|\n")
	for _, f := range flags {
		fmt.Fprintf(p, "| %s%s |\n", f.name, f.text)
	}
}

// below returns the commands of a command that the page describes.
func below(command *cobra.Command) []*cobra.Command {
	return slices.DeleteFunc(slices.Clone(command.Commands()), func(child *cobra.Command) bool { return child.Hidden || generic(child) })
}

// generic returns whether a command is cobra's and the same in every program.
func generic(command *cobra.Command) bool {
	return command.Name() == "help" || command.Name() == "completion"
}

func description(command *cobra.Command) string {
	if command.Long != "" {
		return strings.TrimSpace(command.Long)
	}
	return strings.TrimSuffix(command.Short, ".") + "."
}

// text returns plain text as Markdown, in which only brackets of placeholders mean something.
func text(plain string) string {
	return strings.NewReplacer("<", `\<`, "|", `\|`, "*", `\*`).Replace(plain)
}

// indented returns code with the least indentation of its lines replaced by four blanks.
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

// flagsOf returns the flags of a command, and the names of flags that come from kubectl or from
// Kubernetes' logging and are documented there.
func flagsOf(command *cobra.Command) (own []flag, foreign map[string][]string) {
	foreign = map[string][]string{}
	kubectl := pflag.NewFlagSet("kubectl", pflag.ContinueOnError)
	genericclioptions.NewConfigFlags(true).AddFlags(kubectl)
	logging := pflag.NewFlagSet("logging", pflag.ContinueOnError)
	logsapi.AddFlags(logsapi.NewLoggingConfiguration(), logging)
	command.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Deprecated != "" || f.Name == "help" {
			return
		}
		name := "`--" + f.Name + "`"
		if same := kubectl.Lookup(f.Name); same != nil && same.Usage == f.Usage {
			foreign["kubectl"] = append(foreign["kubectl"], name)
			return
		}
		if strings.HasPrefix(f.Name, "log-") && logging.Lookup(f.Name) != nil {
			foreign["Kubernetes' components"] = append(foreign["Kubernetes' components"], name)
			return
		}
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		value, usage := pflag.UnquoteUsage(f)
		if value != "" {
			value = " " + value
		}
		own = append(own, flag{name, fmt.Sprintf("%s | %s | %s", value, byDefault(f), text(strings.Join(strings.Fields(usage), " ")))})
	})
	return own, foreign
}

// byDefault returns the default of a flag, without values of this machine.
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
