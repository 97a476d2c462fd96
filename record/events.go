package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Events writes scalars for TensorBoard. The file is a series of records, each
//
//	length u64 | masked crc32c of the length u32 | data | masked crc32c of the data u32
//
// little-endian, the data being an Event message (source: TensorFlow's
// tensorflow/core/lib/io/record_writer.cc and
// tensorflow/core/{util/event,framework/summary}.proto):
//
//	Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5; }
//	Summary { repeated Value value = 1; }  Value { string tag = 1; float simple_value = 2; }
type Events struct {
	file *os.File
	size int64 // of the whole records
}

// CreateEvents creates the run's file of TensorBoard events.
func (d *Dir) CreateEvents() (*Events, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	now := time.Now()
	path := filepath.Join(d.path, fmt.Sprintf("events.out.tfevents.%d.%s.%d", now.Unix(), host, os.Getpid()))
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, fmt.Errorf("writing %s: %w", path, explain(err))
	}
	e, err := newEvents(file, now)
	if err != nil {
		return nil, errors.Join(err, file.Close(), os.Remove(path))
	}
	return e, nil
}

// newEvents begins the file with the version that TensorBoard looks for.
func newEvents(file *os.File, now time.Time) (*Events, error) {
	e := &Events{file: file}
	event := appendTime(nil, now)
	event = protowire.AppendTag(event, 3, protowire.BytesType)
	event = protowire.AppendString(event, "brain.Event:2")
	return e, e.record(event)
}

// Scalars writes one event of several scalars, which TensorBoard keeps as
// float32. It is in the file when Scalars returns.
func (e *Events) Scalars(step int64, now time.Time, m Metrics) error {
	var summary []byte
	for _, tag := range m.names() {
		value := protowire.AppendTag(nil, 1, protowire.BytesType)
		value = protowire.AppendString(value, tag)
		value = protowire.AppendTag(value, 2, protowire.Fixed32Type)
		value = protowire.AppendFixed32(value, math.Float32bits(float32(m[tag])))
		summary = protowire.AppendTag(summary, 1, protowire.BytesType)
		summary = protowire.AppendBytes(summary, value)
	}
	event := appendTime(nil, now)
	event = protowire.AppendTag(event, 2, protowire.VarintType)
	event = protowire.AppendVarint(event, uint64(step))
	event = protowire.AppendTag(event, 5, protowire.BytesType)
	return e.record(protowire.AppendBytes(event, summary))
}

func appendTime(event []byte, now time.Time) []byte {
	event = protowire.AppendTag(event, 1, protowire.Fixed64Type)
	return protowire.AppendFixed64(event, math.Float64bits(float64(now.UnixNano())/1e9))
}

// record writes one record. Of one that fails in its middle, nothing stays.
func (e *Events) record(data []byte) error {
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(data)))
	out = binary.LittleEndian.AppendUint32(out, maskedSum(out))
	out = append(out, data...)
	out = binary.LittleEndian.AppendUint32(out, maskedSum(data))
	if _, err := e.file.WriteAt(out, e.size); err != nil {
		e.file.Truncate(e.size) // as far as it goes: the error is the write's
		return fmt.Errorf("writing %s: %w", e.file.Name(), explain(err))
	}
	e.size += int64(len(out))
	return nil
}

// maskedSum is TensorFlow's masked crc32c: rotated and offset, as a checksum of
// data that holds checksums would be weak.
func maskedSum(data []byte) uint32 {
	sum := crc32.Checksum(data, castagnoli)
	return (sum>>15 | sum<<17) + 0xa282ead8
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Close makes the file durable and closes it.
func (e *Events) Close() error {
	if err := errors.Join(e.file.Sync(), e.file.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", e.file.Name(), explain(err))
	}
	return nil
}
