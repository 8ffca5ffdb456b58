// SPDX-License-Identifier: Apache-2.0

// Agnhost is upstream's agnhost for kernels without SCTP sockets: it opens and accepts associations
// on a raw socket, as far as the INIT ACK, which needs a packet in each direction to pass.
// Upstream's own does all else.
package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// upstream is the path of upstream's program in the image.
const upstream = "/agnhost.upstream"

// Types of chunks.
const (
	initiate    = 1
	initiateAck = 2
)

func main() {
	err := run(os.Args[1:])
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// run returns only with an error.
func run(args []string) error {
	switch {
	case slices.Contains(args, "porter"):
		return serveAll()
	case slices.Contains(args, "connect") && slices.Contains(args, "--protocol=sctp"):
		return connect(args)
	}
	return syscall.Exec(upstream, os.Args, os.Environ())
}

// serveAll leaves all ports but those of SCTP to upstream's program.
func serveAll() error {
	command := exec.CommandContext(context.Background(), upstream, os.Args[1:]...)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	ended := make(chan error)
	for _, variable := range os.Environ() {
		port, ok := strings.CutPrefix(variable, "SERVE_SCTP_PORT_")
		if !ok {
			command.Env = append(command.Env, variable)
			continue
		}
		port, _, _ = strings.Cut(port, "=")
		go func() { ended <- serve(port) }()
	}
	go func() { ended <- command.Run() }()
	return <-ended
}

func listen() (net.PacketConn, error) {
	return (&net.ListenConfig{}).ListenPacket(context.Background(), "ip4:132", "0.0.0.0")
}

// serve accepts associations to a port.
func serve(port string) error {
	own, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return err
	}
	listener, err := listen()
	if err != nil {
		return err
	}
	// The answer comes from the address that was asked: a node has several.
	conn, err := ipv4.NewRawConn(listener)
	if err != nil {
		return err
	}
	for buffer := make([]byte, 2000); ; {
		h, packet, _, err := conn.ReadFrom(buffer)
		if err != nil {
			return err
		}
		if len(packet) < 32 || packet[12] != initiate || binary.BigEndian.Uint16(packet[2:]) != uint16(own) {
			continue
		}
		answer := chunk(initiateAck, uint16(own), binary.BigEndian.Uint16(packet), binary.BigEndian.Uint32(packet[16:]))
		reply := &ipv4.Header{Version: ipv4.Version, Len: ipv4.HeaderLen, TotalLen: ipv4.HeaderLen + len(answer), TTL: 64, Protocol: h.Protocol, Src: h.Dst, Dst: h.Src}
		// A policy may forbid the answer.
		if err := conn.WriteTo(reply, answer, nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

// connect opens an association, and ends the process well when it is accepted.
func connect(args []string) error {
	timeout, destination := time.Minute, ""
	for _, arg := range args[1:] {
		if text, ok := strings.CutPrefix(arg, "--timeout="); ok {
			var err error
			if timeout, err = time.ParseDuration(text); err != nil {
				return err
			}
		} else if !strings.HasPrefix(arg, "--") {
			destination = arg
		}
	}
	to, err := net.ResolveTCPAddr("tcp4", destination)
	if err != nil {
		return fmt.Errorf("DNS: %w", err)
	}
	conn, err := listen()
	if err != nil {
		return fmt.Errorf("OTHER: %w", err)
	}
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return fmt.Errorf("OTHER: %w", err)
	}
	own := uint16(32768 + random()%28000)
	// A socket is not told that a policy dropped its packet either.
	if _, err := conn.WriteTo(chunk(initiate, own, uint16(to.Port), 0), &net.IPAddr{IP: to.IP}); err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("OTHER: %w", err)
	}
	for buffer := make([]byte, 2000); ; {
		n, from, err := conn.ReadFrom(buffer)
		switch packet := buffer[:n]; {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return errors.New("TIMEOUT")
		case err != nil:
			return fmt.Errorf("OTHER: %w", err)
		case from.String() == to.IP.String() && n >= 32 && packet[12] == initiateAck && binary.BigEndian.Uint16(packet[2:]) == own && binary.BigEndian.Uint16(packet) == uint16(to.Port):
			os.Exit(0)
		}
	}
}

// chunk returns a packet with an INIT or its answer, which has a cookie besides.
func chunk(kind byte, source, destination uint16, tag uint32) []byte {
	b := make([]byte, 32)
	if kind == initiateAck {
		b = slices.Concat(b, []byte{0, 7, 0, 8, 'b', 'e', 'r', 't'})
	}
	binary.BigEndian.PutUint16(b, source)
	binary.BigEndian.PutUint16(b[2:], destination)
	binary.BigEndian.PutUint32(b[4:], tag)
	b[12] = kind
	binary.BigEndian.PutUint32(b[16:], random())
	binary.BigEndian.PutUint32(b[20:], 65536)
	// Streams in and out, and the first sequence number.
	binary.BigEndian.PutUint16(b[24:], 1)
	binary.BigEndian.PutUint16(b[26:], 1)
	binary.BigEndian.PutUint32(b[28:], 1)
	binary.BigEndian.PutUint16(b[14:], uint16(len(b)-12))
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// random returns a number that is not 0, which no tag is.
func random() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:])
	return binary.BigEndian.Uint32(b[:]) | 1
}
