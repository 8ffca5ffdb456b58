// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/room"
)

// ahead is a write-ahead log of one change: that which the next transaction commits. What is
// written to a file survives the process at once, and a transaction, which also survives the
// node's power, takes four writes and two syncs of the disk longer. A change that is in the log
// need not wait for its transaction: where the process ends before it, Open repeats the change.
//
// The log never disagrees with the file, whatever of both a loss of power leaves: it names the
// transaction that it follows, so it means nothing once the file has a later one, and a checksum
// tells what was not written whole.
type ahead struct {
	file *os.File
}

const (
	// aheadSuffix follows the name of the state file.
	aheadSuffix = ".wal"
	// aheadSize is the log's size from the start on: a disk that others fill keeps no change from
	// it. Larger changes, of dozens of records, wait for their transaction.
	aheadSize = 64 << 10
)

// The log begins with a header: magic, checksum of what follows it, number of the transaction
// that the change follows, length of the change. The change is JSON, a list of aheadWrite.
const (
	aheadMagic  = "bwa1"
	aheadHeader = 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type aheadWrite struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	// Record is the new content; empty where the record is removed.
	Record json.RawMessage `json:"record,omitempty"`
}

var errTooLarge = errors.New("too large for the write-ahead log")

// openAhead opens or makes the log of a state file. It returns nil where the disk has no room for
// one.
func openAhead(path string) (*ahead, error) {
	file, err := os.OpenFile(path+aheadSuffix, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the write-ahead log of the state file: %w", err)
	}
	if err := room.Take(file, 0, aheadSize); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &ahead{file}, nil
}

// put writes a change that follows transaction txid, in place of the one before.
func (a *ahead) put(txid int, writes []write) error {
	list := make([]aheadWrite, 0, len(writes))
	for _, w := range writes {
		list = append(list, aheadWrite{ContainerID: w.key.ContainerID, IfName: w.key.IfName, Record: w.value})
	}
	change, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("encode the write-ahead log: %w", err)
	}
	if aheadHeader+len(change) > aheadSize {
		return errTooLarge
	}
	raw := make([]byte, aheadHeader, aheadHeader+len(change))
	copy(raw, aheadMagic)
	binary.LittleEndian.PutUint64(raw[8:], uint64(txid))
	binary.LittleEndian.PutUint32(raw[16:], uint32(len(change)))
	raw = append(raw, change...)
	binary.LittleEndian.PutUint32(raw[4:], crc32.Checksum(raw[8:], castagnoli))
	if _, err := a.file.WriteAt(raw, 0); err != nil {
		return fmt.Errorf("write the write-ahead log: %w", err)
	}
	return nil
}

// get returns the change that the log has after transaction txid, nil where it has none.
func (a *ahead) get(txid int) ([]write, error) {
	raw := make([]byte, aheadSize)
	n, err := a.file.ReadAt(raw, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the write-ahead log: %w", err)
	}
	return parseAhead(raw[:n], txid)
}

func parseAhead(raw []byte, txid int) ([]write, error) {
	if len(raw) < aheadHeader || string(raw[:4]) != aheadMagic {
		return nil, nil
	}
	length := binary.LittleEndian.Uint32(raw[16:])
	if uint64(length) > uint64(len(raw)-aheadHeader) {
		return nil, nil
	}
	raw = raw[:aheadHeader+length]
	if crc32.Checksum(raw[8:], castagnoli) != binary.LittleEndian.Uint32(raw[4:]) || binary.LittleEndian.Uint64(raw[8:]) != uint64(txid) {
		return nil, nil
	}
	var list []aheadWrite
	if err := json.Unmarshal(raw[aheadHeader:], &list); err != nil {
		return nil, fmt.Errorf("decode the write-ahead log: %w", err)
	}
	writes := make([]write, 0, len(list))
	for _, one := range list {
		w := write{key: Key{ContainerID: one.ContainerID, IfName: one.IfName}}
		if one.Record != nil {
			record, err := decode(w.key.bytes(), one.Record)
			if err != nil {
				return nil, fmt.Errorf("the write-ahead log: %w", err)
			}
			w.value, w.record = one.Record, record
		}
		writes = append(writes, w)
	}
	return writes, nil
}

// clear makes the log empty. The change that it had is in the file.
func (a *ahead) clear() error {
	if _, err := a.file.WriteAt(make([]byte, len(aheadMagic)), 0); err != nil {
		return fmt.Errorf("clear the write-ahead log: %w", err)
	}
	return nil
}
