// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
)

// The part of gRPC that is used here: a call is an HTTP/2 POST, a message has five bytes before it,
// and the status comes in a trailer.

const (
	contentType = "application/grpc"
	// maxMessage is much larger than the kubelet's messages.
	maxMessage = 1 << 20

	statusInternal      = 13
	statusUnimplemented = 12
)

// overHTTP2 is HTTP/2 from the first byte on, without TLS.
func overHTTP2() *http.Protocols {
	p := &http.Protocols{}
	p.SetUnencryptedHTTP2(true)
	return p
}

// writeMessage sends a message at once.
func writeMessage(w http.ResponseWriter, message []byte) error {
	w.Header().Set("Content-Type", contentType)
	if _, err := w.Write(frame(message)); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}

func frame(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// readMessage reads one message.
func readMessage(r io.Reader) ([]byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, fmt.Errorf("read the head of a message: %w", err)
	}
	length := binary.BigEndian.Uint32(head[1:])
	if head[0] != 0 || length > maxMessage {
		return nil, fmt.Errorf("a message is compressed, or has %d bytes, more than %d", length, maxMessage)
	}
	message := make([]byte, length)
	if _, err := io.ReadFull(r, message); err != nil {
		return nil, fmt.Errorf("read a message: %w", err)
	}
	return message, nil
}

// unary serves calls with a single response.
func unary(answer func(request []byte) ([]byte, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		request, err := readMessage(r.Body)
		var response []byte
		if err == nil {
			response, err = answer(request)
		}
		if err == nil {
			err = writeMessage(w, response)
		}
		if err != nil {
			refuse(w, statusInternal, err.Error())
			return
		}
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	}
}

// refuse ends a call without a message.
func refuse(w http.ResponseWriter, status int, why string) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Grpc-Status", strconv.Itoa(status))
	w.Header().Set("Grpc-Message", url.PathEscape(why))
}

// call sends a message to a method on a socket, and returns an error if the other side refuses it.
func call(ctx context.Context, socket, method string, message []byte) error {
	transport := &http.Transport{Protocols: overHTTP2(), DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+method, bytes.NewReader(frame(message)))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Te", "trailers")
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, io.LimitReader(response.Body, maxMessage))
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	// A refusal may have its status in the header.
	said := func(key string) string { return cmp.Or(response.Trailer.Get(key), response.Header.Get(key)) }
	if status := said("Grpc-Status"); status != "0" {
		return fmt.Errorf("refused with gRPC status %q (HTTP %d): %s", status, response.StatusCode, said("Grpc-Message"))
	}
	return nil
}
