// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Answer is the agent's HTTP response.
type Answer struct {
	// Status is the HTTP status, 0 if no HTTP server responds.
	Status int
	// Outcome is the value of HeaderOutcome.
	Outcome string
	Body    []byte
}

// ErrIncomplete is returned by Post if the agent ended before its response was complete.
var ErrIncomplete = errors.New("its answer ended before it was complete")

// timeout limits a call; it is longer than the agent's own limit.
const timeout = 4 * time.Minute

// statusTimeout limits STATUS. Together with patience it is shorter than 30 s, after which a silent
// runtime is dead for the kubelet.
const statusTimeout = 15 * time.Second

// patience limits how long a call waits until the agent listens. After a crash or an upgrade the
// agent is mostly back within seconds. For the kubelet a runtime that is silent for 30 s is dead.
//
// A call does not wait if no socket exists: the node has just started, and the kubelet starts no
// pod, and so no agent, before the first result of STATUS.
const patience = 10 * time.Second

const retry = 50 * time.Millisecond

// Post waits for the agent if it is away for a moment, sends a request and returns the response.
// headers are complete lines. It uses HTTP/1.0, whose responses end with the connection.
func Post(socket, path, headers string, body []byte) (Answer, error) {
	return post(socket, path, headers, body, patience, timeout)
}

func post(socket, path, headers string, body []byte, wait, limit time.Duration) (Answer, error) {
	conn, err := connect(socket, wait)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return Answer{}, err
	}
	request := append([]byte("POST "+path+" HTTP/1.0\r\n"+headers+"Content-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"), body...)
	if _, err := conn.Write(request); err != nil {
		return Answer{}, err
	}
	raw, err := io.ReadAll(io.LimitReader(conn, MaxBytes))
	if err != nil {
		return Answer{}, err
	}
	return parse(raw)
}

// Line returns the header line of a variable.
func Line(variable, value string) string {
	return HeaderOf(variable) + ": " + escape(value) + "\r\n"
}

// escape escapes, as in URLs, characters that would end a line or begin an escape, and blanks,
// because parsers of headers remove blanks at the ends.
func escape(value string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(value) {
		if c := value[i]; c <= ' ' || c == '%' || c >= 0x7f {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// connect returns a connection to the agent. While nobody listens on the socket it tries
// again, until limit.
func connect(socket string, limit time.Duration) (*os.File, error) {
	end := time.Now().Add(limit)
	for {
		conn, err := dial(socket)
		// EAGAIN: more callers wait for the agent than the kernel queues.
		if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.EAGAIN) || !time.Now().Before(end) {
			return conn, err
		}
		<-time.After(retry)
	}
}

func dial(socket string) (*os.File, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket}); err != nil {
		_ = syscall.Close(fd)
		return nil, os.NewSyscallError("connect", err)
	}
	return os.NewFile(uintptr(fd), socket), nil
}

func parse(raw []byte) (Answer, error) {
	if len(raw) == 0 {
		return Answer{}, ErrIncomplete
	}
	head, body, _ := bytes.Cut(raw, []byte("\r\n\r\n"))
	lines := strings.Split(string(head), "\r\n")
	protocol, status, _ := strings.Cut(lines[0], " ")
	if len(status) < 3 || !strings.HasPrefix(protocol, "HTTP/1.") {
		return Answer{Body: raw}, nil
	}
	answer := Answer{Body: body}
	var err error
	if answer.Status, err = strconv.Atoi(status[:3]); err != nil || answer.Status < 0 {
		return Answer{Body: raw}, nil //nolint:nilerr // an answer without a status is not the agent's, and is shown as it is
	}
	length := ""
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ":")
		switch {
		case strings.EqualFold(name, HeaderOutcome):
			answer.Outcome = strings.TrimSpace(value)
		case strings.EqualFold(name, "Content-Length"):
			length = strings.TrimSpace(value)
		}
	}
	// The agent sends the length with each outcome.
	if (answer.Outcome != "" || length != "") && length != strconv.Itoa(len(body)) {
		return Answer{}, ErrIncomplete
	}
	return answer, nil
}

// ErrAway is returned by PostStatus if no agent responds, although an agent has served since the
// node started.
var ErrAway = errors.New("the agent is away")

// PostStatus sends STATUS as Post sends other commands. If STATUS fails, the kubelet makes the node
// not ready, and Kubernetes then evicts all of its pods, although they run without an agent, too.
// So it is no failure if an agent that has served is gone or hangs: PostStatus returns ErrAway, at
// the latest after statusTimeout. A node that has just started is not ready before its agent.
func PostStatus(socket, path, headers string, body []byte) (Answer, error) {
	wait := patience
	if Served(socket) {
		wait = 0
	}
	answer, err := post(socket, path, headers, body, wait, statusTimeout)
	if err != nil && Served(socket) {
		return Answer{}, ErrAway
	}
	return answer, err
}

// Served reports whether an agent has served a successful STATUS on the socket since the node
// started. SetServed notes this in the socket's modification time: the socket outlasts the agent,
// but its folder does not outlast a restart of the node.
func Served(socket string) bool {
	info, err := os.Stat(socket)
	return err == nil && !info.ModTime().Equal(unserved)
}

// unserved is the time of a socket on which no agent has served.
var unserved = time.Unix(0, 0)

// SetServed notes whether an agent has served since the node started.
func SetServed(socket string, served bool) error {
	at := unserved
	if served {
		at = time.Now()
	}
	return os.Chtimes(socket, at, at)
}

// Unreachable returns the message in the pod's events if the agent does not respond.
func Unreachable(socket string, err error) string {
	return "the Berth agent of this node does not answer on " + socket + ": " + err.Error() +
		"; see: kubectl get pods -A -l app.kubernetes.io/name=berth-agent -o wide"
}
