package record

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var flightEpoch = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func flightTime(second float64) time.Time {
	return flightEpoch.Add(time.Duration(second * float64(time.Second)))
}

// flown is an operation of a block; those with a group are collectives. Times
// are seconds, 0 for never.
func flown(operation, group string, number int64, state string, begun, ended float64) FlightOperation {
	o := FlightOperation{
		Number: number, Program: "micro-batch", Step: 31, Unit: "block 3", Cut: "mlp.up", Operation: operation, Group: group, Collective: number,
		State: state, Part: 1, Parts: 3, Queued: flightTime(0.5),
	}
	if group == "" {
		o.Collective = 0
	}
	if begun > 0 {
		o.Begun = flightTime(begun)
	}
	if ended > 0 {
		o.Ended = flightTime(ended)
	}
	return o
}

func flightStream(name string, ops ...FlightOperation) FlightStream {
	return FlightStream{Name: name, Launched: 500, Queued: 3, Ops: ops}
}

// flights returns the recorders of ranks of a world, written 12 s after the epoch.
func flights(world, steps int, groups func(rank int) map[string][]int, streams map[int][]FlightStream, reasons map[int]string) (all []*Flight) {
	for r := range world {
		if streams[r] != nil {
			all = append(all, &Flight{
				Format: FlightFormat, Rank: r, World: world, Steps: steps, Time: flightTime(12 + float64(r)/10), Reason: reasons[r], Groups: groups(r), Streams: streams[r],
			})
		}
	}
	return all
}

func TestTheReportNamesWhoIsMissingInWhichCollective(t *testing.T) {
	pair := func(int) map[string][]int { return map[string][]int{"within": {0, 1}} }
	square := func(r int) map[string][]int {
		return map[string][]int{"within": {r / 2 * 2, r/2*2 + 1}, "across": {r % 2, r%2 + 2}}
	}
	waits := flown("MatMul", "", 90, FlightWaiting, 0, 0)
	waits.WaitsFor = "gather"
	for name, c := range map[string]struct {
		flights []*Flight
		at      []string // by flight
		report  string
	}{
		"the other rank was killed": {
			flights: flights(2, 11, pair, map[int][]FlightStream{1: {
				flightStream("compute", flown("SwiGLU", "", 89, FlightDone, 1, 1.5), waits, flown("SwiGLU", "", 91, FlightQueued, 0, 0)),
				flightStream("gather", flown("all-gather of block 2 weights", "gather within", 411, FlightDone, 1, 1.9), flown("all-gather of block 3 weights", "gather within", 412, FlightUnderWay, 2.1, 0)),
			}}, map[int]string{1: "stopped because of another: rank 0 was killed by signal 9 (killed)"}),
			at: []string{"waiting in all-gather of block 3 weights, number 412, for 10.0 s"},
			report: `
1 of 2 ranks left a flight recorder; not rank 0

rank 1, after step 11: stopped because of another: rank 0 was killed by signal 9 (killed)

all-gather of block 3 weights, number 412 (gather within): rank 1 waited for 10.0 s, and these had not come:
  rank 0: left no flight recorder: it was killed, stopped or cut off

stream   rank  step  stood
compute  1     11    before MatMul of block 3, mlp.up, which waits for stream gather (micro-batch, step 31)
gather   1     11    waiting in all-gather of block 3 weights, number 412 (micro-batch, step 31)
`,
		},
		"one of four computes for ever": {
			flights: flights(4, 11, square, map[int][]FlightStream{
				0: {flightStream("compute", waits), flightStream("gather", flown("all-gather of block 3 weights", "gather across", 77, FlightFailed, 2, 12))},
				1: {flightStream("compute", waits), flightStream("gather", flown("all-gather of block 3 weights", "gather across", 77, FlightDone, 2, 2.5), flown("all-gather of block 3 weights", "gather within", 412, FlightFailed, 2.5, 12))},
				2: {flightStream("compute", flown("MatMul", "", 85, FlightUnderWay, 1.2, 0)), flightStream("gather", flown("all-gather of block 2 weights", "gather across", 76, FlightDone, 1, 1.1))},
				3: {flightStream("compute", waits), flightStream("gather", flown("all-gather of block 3 weights", "gather across", 77, FlightDone, 2, 2.5), flown("all-gather of block 3 weights", "gather within", 412, FlightFailed, 2.6, 12))},
			}, map[int]string{0: "waited in vain\nat length", 1: "gave up", 2: "stopped because of another", 3: "gave up"}),
			at: []string{
				"failed in all-gather of block 3 weights, number 77, after 10.0 s", "failed in all-gather of block 3 weights, number 412, after 9.5 s",
				"in MatMul of block 3, mlp.up, for 11.0 s", "failed in all-gather of block 3 weights, number 412, after 9.4 s",
			},
			report: `
4 of 4 ranks left a flight recorder

rank 0, after step 11: waited in vain
ranks 1, 3, after step 11: gave up
rank 2, after step 11: stopped because of another

all-gather of block 3 weights, number 77 (gather across): rank 0 waited for 10.0 s, and these had not come:
  rank 2: after step 11, in MatMul of block 3, mlp.up, for 11.0 s
all-gather of block 3 weights, number 412 (gather within): rank 1 waited for 9.5 s, and these had not come:
  rank 0: after step 11, failed in all-gather of block 3 weights, number 77, after 10.0 s
all-gather of block 3 weights, number 412 (gather within): rank 3 waited for 9.4 s, and these had not come:
  rank 2: after step 11, in MatMul of block 3, mlp.up, for 11.0 s

stream   rank    step  stood
compute  0-1, 3  11    before MatMul of block 3, mlp.up, which waits for stream gather (micro-batch, step 31)
         2       11    in MatMul of block 3, mlp.up (micro-batch, step 31)
gather   0       11    failed in all-gather of block 3 weights, number 77 (micro-batch, step 31)
         1, 3    11    failed in all-gather of block 3 weights, number 412 (micro-batch, step 31)
         2       11    at the end of micro-batch
`,
		},
		"all have come and one fails": {
			flights: flights(2, 0, pair, map[int][]FlightStream{
				0: {flightStream("compute", flown("all-reduce of agreement", "reduce within", 3, FlightFailed, 2, 3), flown("Fill", "", 1, FlightSkipped, 0, 3))},
				1: {flightStream("compute", flown("all-reduce of agreement", "reduce within", 3, FlightUnderWay, 2.1, 0))},
			}, map[int]string{0: "the link broke", 1: "the link broke"}),
			at: []string{"failed in all-reduce of agreement, number 3, after 1.0 s", "waiting in all-reduce of agreement, number 3, for 10.0 s"},
			report: `
2 of 2 ranks left a flight recorder

ranks 0-1, after step 0: the link broke

all-reduce of agreement, number 3 (reduce within): ranks 0-1 waited for 10.0 s; all had come

stream   rank  step  stood
compute  0     0     failed in all-reduce of agreement, number 3 (micro-batch, step 31)
         1     0     waiting in all-reduce of agreement, number 3 (micro-batch, step 31)
`,
		},
		"one has not begun and the other binds": {
			flights: flights(2, 0, pair, map[int][]FlightStream{
				0: {flightStream("set-up", flown("all-reduce of agreement", "reduce within", 0, FlightUnderWay, 2, 0))},
				1: {},
			}, map[int]string{0: "stopped because of another", 1: "text/3.txt: no such file"}),
			at: []string{"waiting in all-reduce of agreement, number 0, for 10.0 s", "before its first operation"},
			report: `
2 of 2 ranks left a flight recorder

rank 0, after step 0: stopped because of another
rank 1, after step 0: text/3.txt: no such file

all-reduce of agreement, number 0 (reduce within): rank 0 waited for 10.0 s, and these had not come:
  rank 1: after step 0, before its first operation

stream  rank  step  stood
set-up  0     0     waiting in all-reduce of agreement, number 0 (micro-batch, step 31)
        1     0     has not begun
`,
		},
		"the only rank meets a NaN": {
			flights: flights(1, 4, func(int) map[string][]int { return nil }, map[int][]FlightStream{0: {
				flightStream("compute", flown("AdamW", "", 9, FlightDone, 1, 11)),
				flightStream("replay", flown("Embed", "", 5, FlightDone, 11, 11.1), flown("MatMul", "", 6, FlightFailed, 11.1, 11.3), flown("SwiGLU", "", 7, FlightSkipped, 0, 11.3)),
			}}, map[int]string{0: "the gradient is not finite"}),
			at: []string{"failed in MatMul of block 3, mlp.up, after 200 ms"},
			report: `
1 of 1 ranks left a flight recorder

rank 0, after step 4: the gradient is not finite

stream   rank  step  stood
compute  0     4     at the end of micro-batch
replay   0     4     failed in MatMul of block 3, mlp.up (micro-batch, step 31)
`,
		},
		"one was between two programs": {
			flights: flights(1, 4, func(int) map[string][]int { return nil }, map[int][]FlightStream{0: {
				flightStream("compute", flown("AdamW", "", 9, FlightDone, 1, 11)),
			}}, map[int]string{0: "quit"}),
			at:     []string{"between programs, since micro-batch ended, for 1.0 s"},
			report: "\n1 of 1 ranks left a flight recorder\n\nrank 0, after step 4: quit\n\nstream   rank  step  stood\ncompute  0     4     at the end of micro-batch\n",
		},
	} {
		var at []string
		for _, f := range c.flights {
			at = append(at, f.At())
		}
		if diff := cmp.Diff(c.at, at); diff != "" {
			t.Errorf("%s: where they stood:\n%s", name, diff)
		}
		if diff := cmp.Diff(strings.Split(c.report[1:], "\n"), strings.Split(FlightReport(c.flights), "\n")); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

func TestFlightRecordersAreFilesOfTheirRanks(t *testing.T) {
	d, err := Create(filepath.Join(t.TempDir(), "run"))
	if err != nil {
		t.Fatal(err)
	}
	if all, err := d.ReadFlights(); len(all) != 0 || err != nil {
		t.Fatalf("a run that ends well has %v, %v", all, err)
	}
	written := flights(12, 3, func(int) map[string][]int { return map[string][]int{"within": {0, 1}} }, map[int][]FlightStream{
		10: {flightStream("compute", flown("all-reduce of agreement", "reduce within", 0, FlightUnderWay, 2, 0))}, 2: {flightStream("gather", flown("Fill", "", 1, FlightSkipped, 0, 3))},
	}, map[int]string{2: "a", 10: "b"})
	for _, f := range slices.Backward(written) {
		f.Format = 0
		if err := d.WriteFlight(f); err != nil {
			t.Fatal(err)
		}
	}
	read, err := d.ReadFlights()
	if diff := cmp.Diff(written, read); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	if file := d.FlightFile(10); filepath.Base(file) != "flight-rank-010.json" || filepath.Dir(file) != d.LogsDir() {
		t.Errorf("it is %s", file)
	}
	text := `{"format": 9, "rank": 3}`
	if err := os.WriteFile(d.FlightFile(3), []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	_, err = d.ReadFlights()
	says(t, err, "flight-rank-003.json", "format 9")
}

// As with the other golden files of format 1, what it says must stay readable.
func TestAFlightRecorderOfFormat1StaysReadable(t *testing.T) {
	var f Flight
	if err := readJSON("testdata/flight.v1.json", FlightFormat, &f); err != nil {
		t.Fatal(err)
	}
	keeps(t, "testdata/flight.v1.json", f)
	if at := f.At(); f.Rank != 1 || at != "waiting in all-gather of block 3 weights, number 412, for 10.0 s" {
		t.Errorf("rank %d was %s", f.Rank, at)
	}
}

// On a GPU what was bound is all that there is, and it has ended long ago.
func TestOfADeviceThatDoesNotShowWhatItIsAtNothingIsMadeUp(t *testing.T) {
	f := &Flight{Rank: 0, World: 1, Steps: 4, Reason: "the device is lost", Unseen: true, Streams: []FlightStream{
		flightStream("set-up", flown("all-gather of block 2", "gather within", 7, FlightDone, 1, 2)),
	}}
	if got := f.At(); got != "where its GPU stood is not known" {
		t.Errorf("it stood %q", got)
	}
	const want = "rank 0, after step 4: the device is lost\nWhat GPUs were at is not to be seen; where it is known, the reason names it.\n"
	if got := FlightReport([]*Flight{f}); !strings.Contains(got, want) {
		t.Errorf("the report is\n%s\nand lacks\n%s", got, want)
	}
}
