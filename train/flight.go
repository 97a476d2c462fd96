package train

import (
	"time"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/record"
)

// FlightRecord returns what a rank's flight recorder holds now, for its file.
// Whoever calls it adds the reason.
func FlightRecord(f *fsdp.Flight, rank, world int) *record.Flight {
	r := &record.Flight{Format: record.FlightFormat, Rank: rank, World: world, Time: time.Now(), Steps: f.Steps(), Groups: f.Groups(), Streams: []record.FlightStream{}}
	for _, s := range f.Streams() {
		stream := record.FlightStream{Name: s.Name, Launched: s.Launched, Queued: s.Queued, Ops: []record.FlightOperation{}}
		for _, op := range s.Ops {
			stream.Ops = append(stream.Ops, record.FlightOperation(op))
		}
		r.Streams = append(r.Streams, stream)
	}
	return r
}
