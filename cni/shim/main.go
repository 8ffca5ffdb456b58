// SPDX-License-Identifier: Apache-2.0

// Berth-cni is the CNI plugin that the container runtime calls. It passes each call to the node
// agent over the agent's socket and prints the response. It makes no decision and changes nothing,
// so an upgrade can replace it at any time.
//
// It runs once for every pod, so it is small: package relay explains the forbidden imports. The
// agent checks the calls; berth-cni checks only what it needs to reach the agent.
package main

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/cni/relay"
)

func main() { os.Exit(run(os.Getenv, os.Stdin, os.Stdout, os.Stderr)) }

// Codes of CNI's errors (CNI specification, section Error).
const (
	codeIO           = 5
	codeDecoding     = 6
	codeTryAgain     = 11
	codeNotAvailable = 50
	// codeInternal is defined by CNI's Go package.
	codeInternal = 999
)

// run serves one call and returns the exit status.
func run(getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	command := getenv("CNI_COMMAND")
	switch command {
	case "":
		return write(stderr, "CNI plugin berth-cni\nCNI protocol versions supported: "+strings.Join(relay.Versions(), ", ")+"\n", 0)
	case "VERSION":
		versions := relay.Versions()
		return write(stdout, `{"cniVersion":"`+versions[len(versions)-1]+`","supportedVersions":["`+strings.Join(versions, `","`)+"\"]}\n", 0)
	}
	config, err := io.ReadAll(stdin)
	if err != nil {
		return fail(stdout, codeIO, "error reading from stdin: "+err.Error())
	}
	socket, err := relay.SocketOf(config)
	if err != nil {
		return fail(stdout, codeDecoding, "decode the configuration of berth-cni: "+err.Error())
	}
	var headers strings.Builder
	for _, variable := range relay.Variables() {
		headers.WriteString(relay.Line(variable, getenv(variable)))
	}
	post := relay.Post
	if command == "STATUS" {
		post = relay.PostStatus
	}
	answer, err := post(socket, relay.Path, headers.String(), config)
	switch {
	case errors.Is(err, relay.ErrAway):
		return 0
	case err != nil && command == "STATUS":
		return fail(stdout, codeNotAvailable, relay.Unreachable(socket, err))
	case err != nil:
		return fail(stdout, codeTryAgain, relay.Unreachable(socket, err))
	case answer.Outcome == relay.Result:
		return write(stdout, string(answer.Body), 0)
	case answer.Outcome == relay.Error:
		return write(stdout, string(answer.Body), 1)
	case answer.Status == statusNotFound:
		return fail(stdout, codeTryAgain, "the Berth agent that answers on "+socket+" is of another version than its plugin berth-cni; it is probably being replaced, else install the plugin of its version")
	default:
		return fail(stdout, codeInternal, "the program that answers on "+socket+" is not the Berth agent: HTTP status "+
			strconv.Itoa(answer.Status)+", "+strconv.Quote(string(answer.Body[:min(len(answer.Body), 200)])))
	}
}

// statusNotFound is defined by HTTP.
const statusNotFound = 404

// fail prints an error of CNI and returns the exit status.
func fail(stdout io.Writer, code int, message string) int {
	return write(stdout, `{"code":`+strconv.Itoa(code)+`,"msg":`+relay.Quote(message)+"}\n", 1)
}

// write prints text and returns status, or 1 if it cannot be written.
func write(w io.Writer, text string, status int) int {
	if _, err := io.WriteString(w, text); err != nil {
		return 1
	}
	return status
}
