package record

import (
	"encoding/binary"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// readEvents parses a file of events by the formats' definitions, with none of
// the code that writes it: its own crc, its own protobuf.
func readEvents(t *testing.T, path string) (events []message) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for len(text) > 0 {
		n := binary.LittleEndian.Uint64(text)
		checkSum(t, text[:8], binary.LittleEndian.Uint32(text[8:]))
		data := text[12 : 12+n]
		checkSum(t, data, binary.LittleEndian.Uint32(text[12+n:]))
		events = append(events, parseMessage(t, data))
		text = text[16+n:]
	}
	return events
}

// checkSum compares a masked sum with crc32c computed bit by bit.
func checkSum(t *testing.T, data []byte, masked uint32) {
	t.Helper()
	crc := ^uint32(0)
	for _, b := range data {
		crc ^= uint32(b)
		for range 8 {
			low := crc & 1
			crc >>= 1
			if low != 0 {
				crc ^= 0x82f63b78 // Castagnoli's polynomial, reversed
			}
		}
	}
	if want := bits.RotateLeft32(^crc, -15) + 0xa282ead8; masked != want {
		t.Fatalf("the checksum is %08x, want %08x", masked, want)
	}
}

// message is a protobuf message: what each field holds, in order.
type message map[int][]field

type field struct {
	number uint64 // of the types varint, fixed32 and fixed64
	bytes  []byte
}

func parseMessage(t *testing.T, data []byte) message {
	t.Helper()
	m := message{}
	varint := func() uint64 {
		v, n := binary.Uvarint(data)
		if n <= 0 {
			t.Fatalf("a bad varint in %x", data)
		}
		data = data[n:]
		return v
	}
	for len(data) > 0 {
		tag := varint()
		var f field
		switch tag & 7 {
		case 0:
			f.number = varint()
		case 1:
			f.number, data = binary.LittleEndian.Uint64(data), data[8:]
		case 2:
			n := varint()
			f.bytes, data = data[:n], data[n:]
		case 5:
			f.number, data = uint64(binary.LittleEndian.Uint32(data)), data[4:]
		default:
			t.Fatalf("wire type %d", tag&7)
		}
		m[int(tag>>3)] = append(m[int(tag>>3)], f)
	}
	return m
}

func TestEventsAreWhatTensorBoardDefines(t *testing.T) {
	d := create(t)
	e, err := d.CreateEvents()
	if err != nil {
		t.Fatal(err)
	}
	then := time.Unix(1_796_011_200, 500_000_000)
	if err := e.Scalars(7, then, Metrics{"loss": 2.5, "eval_loss": math.Inf(1)}); err != nil {
		t.Fatal(err)
	}
	if err := e.Scalars(1<<40, then, Metrics{"loss": 0}); err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(d.Path(), "events.out.tfevents.*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("found %q (%v)", found, err)
	}
	// Read before Close: each event is there when it was written.
	events := readEvents(t, found[0])
	if len(events) != 3 {
		t.Fatalf("%d events", len(events))
	}
	if version := string(events[0][3][0].bytes); version != "brain.Event:2" {
		t.Errorf("the version is %q", version)
	}
	if wall := math.Float64frombits(events[1][1][0].number); wall != 1_796_011_200.5 {
		t.Errorf("the time is %f", wall)
	}
	if a, b := events[1][2][0].number, events[2][2][0].number; a != 7 || b != 1<<40 {
		t.Errorf("the steps are %d and %d", a, b)
	}
	var tags []string
	var values []float32
	for _, v := range parseMessage(t, events[1][5][0].bytes)[1] {
		value := parseMessage(t, v.bytes)
		tags = append(tags, string(value[1][0].bytes))
		values = append(values, math.Float32frombits(uint32(value[2][0].number)))
	}
	if len(tags) != 2 || tags[0] != "eval_loss" || tags[1] != "loss" || !math.IsInf(float64(values[0]), 1) || values[1] != 2.5 {
		t.Errorf("the scalars are %q %v", tags, values)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

func TestAnEventThatFailsLeavesTheFileReadable(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	d := create(t)
	e, err := d.CreateEvents()
	if err != nil {
		t.Fatal(err)
	}
	limitFileSize(t, uint64(e.size)+5)
	says(t, e.Scalars(1, time.Now(), Metrics{"loss": 1}), e.file.Name())
	if got := len(readEvents(t, e.file.Name())); got != 1 {
		t.Errorf("%d events", got)
	}
}
