package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/train"
)

// sustained multiplies for as long as a GPU needs to come to the power and heat that it keeps.
func sustained(ctx context.Context, c *check) (err error) {
	const windows = 6
	g, err := c.onGPU(cuda.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	o, err := g.Square(device.BF16, c.Edge)
	if err != nil {
		return err
	}
	one, err := g.Seconds(o, c.Reading)
	if err != nil {
		return err
	}
	t := c.table(fmt.Sprintf("cuBLAS, bf16, %d × %d × %d, in a row", c.Edge, c.Edge, c.Edge), Column{"after", Second}, Column{"speed", FLOPS}, Column{"share of the data sheet's dense peak", Share}, Column{"clock", Text}, Column{"power", Text}, Column{"temperature", Text}, Column{"slowed by", Text})
	t.Note = "The last row is the yardstick. The peak of a data sheet is no measurement."
	peak := densePeak(g.Info().Name)
	began := time.Now()
	var last float64
	for i := range windows {
		if err := ctx.Err(); err != nil {
			return err
		}
		end := c.Sustained * time.Duration(i+1) / windows
		var took float64
		launched := 0
		for time.Since(began) < end || launched == 0 {
			n := min(max(int(0.5/one), 1), mostLaunches)
			d, err := g.Stream.Time(func() {
				for range n {
					g.Stream.Launch(o)
				}
			})
			if err != nil {
				return err
			}
			took, launched = took+max(d.Seconds(), 1e-9), launched+n
		}
		last = float64(o.Cost().FLOPs) * float64(launched) / took
		var share any
		if peak > 0 {
			share = last / peak
		}
		t.add(append([]any{time.Since(began).Seconds(), last, share}, c.conditions()...)...)
	}
	c.figure("sustained FLOP/s", last)
	if peak > 0 {
		c.figure("data sheet FLOP/s", peak)
	}
	return nil
}

// conditions are how the first GPU is just now, under the load that has just ended: clock, power, temperature and
// what keeps it from being faster. What nobody tells is nil.
func (c *check) conditions() []any {
	cells := make([]any, 4)
	d, ok := c.state()
	if !ok {
		return cells
	}
	if x, ok := d.SMClock.Get(); ok {
		cells[0] = fmt.Sprintf("%d of %d MHz", x.Now, x.Max)
	}
	if x, ok := d.Power.Get(); ok {
		cells[1] = fmt.Sprintf("%.0f of %.0f W", x.Now, x.Limit)
	}
	if x, ok := d.Temperature.Get(); ok {
		cells[2] = fmt.Sprintf("%d °C", x)
	}
	if x, ok := d.Slowed.Get(); ok {
		cells[3] = strings.Join(x, ", ")
	}
	return cells
}

// training measures steps as gofsdp trains.
func training(s Shape) func(context.Context, *check) error {
	return func(ctx context.Context, c *check) (err error) {
		d, err := c.open(cuda.Options{Graphs: true, Urgent: asRanks.Urgent})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, d.Close()) }()
		sequences, _, err := s.fit(d.Info().Memory)
		if err != nil {
			return err
		}
		x := s.settings(sequences)
		x.Rounds, x.Warm, x.Steps, x.Reading = 1, c.Warm, c.Timed, c.Reading
		times, err := steps(ctx, d, c.Sizes, x)
		if err != nil {
			return err
		}
		tokens, flops := speeds(times)
		t := c.table(s.title(sequences), Column{"", Text}, Column{"median", Tokens}, Column{"least", Tokens}, Column{"most", Tokens}, Column{"FLOP/s of the model", FLOPS}, Column{"share of cuBLAS at that time", Share})
		var shares []float64
		for i, limit := range times.Limit() {
			shares = append(shares, limit/times.Seconds[i])
		}
		t.add("gofsdp", tokens.Median, tokens.Low, tokens.High, flops.Median, bench.SpreadOf(shares).Median)
		c.figure("training FLOP/s", flops.Median)
		c.figure("training tokens/s", tokens.Median)
		return nil
	}
}

// title names the training of a shape.
func (s Shape) title(sequences int) string {
	return fmt.Sprintf("Training %s in bf16, %s of %d tokens", s.Model, train.Number(sequences, "sequence"), s.Length)
}

// settings are those of a step on one rank.
func (s Shape) settings(sequences int) bench.StepSettings {
	return bench.StepSettings{
		Cases: []bench.StepCase{{Name: "one GPU", Mesh: fsdp.Mesh{Across: 1, Within: 1}, Strategy: fsdp.NoShard, MicroBatches: 1, Recompute: fsdp.RecomputeNone}},
		Model: s.Model, Length: s.Length, Sequences: sequences, Precision: device.BF16, Threads: 1,
		Optimizer: adamW, LR: 1e-4, Clip: 1,
	}
}

// steps measures training steps on one GPU, as package bench does. The settings have one case.
func steps(ctx context.Context, d device.Device, s Sizes, x bench.StepSettings) (*bench.StepTimes, error) {
	m, err := onStream(d, s)
	if err != nil {
		return nil, err
	}
	var samples []bench.Sample
	err = x.Measure(ctx, &bench.Member{
		Device: m,
		Meet:   func(context.Context) error { return nil },
		Report: func(sample bench.Sample) error {
			samples = append(samples, sample)
			return nil
		},
		Log: func(string, ...any) {},
	})
	if err != nil {
		return nil, err
	}
	times, err := x.Times([][]bench.Sample{samples})
	if err != nil {
		return nil, err
	}
	return &times[0], nil
}

// speeds returns tokens and the model's FLOPs, a second.
func speeds(t *bench.StepTimes) (tokens, flops bench.Spread) {
	var a, b []float64
	for _, seconds := range t.Seconds {
		a, b = append(a, float64(t.Tokens)/seconds), append(b, t.FLOPs/seconds)
	}
	return bench.SpreadOf(a), bench.SpreadOf(b)
}
