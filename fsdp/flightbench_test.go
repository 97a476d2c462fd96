package fsdp

import (
	"testing"
	"time"
)

// BenchmarkRememberingAnOperation is what the flight recorder adds to each
// operation of a step.
func BenchmarkRememberingAnOperation(b *testing.B) {
	p, err := NewPlan(flightOptions)
	if err != nil {
		b.Fatal(err)
	}
	r := &ring{epoch: time.Now()}
	r.open()
	o := &boundOp{parts: 1, step: 3}
	b.ReportAllocs()
	for b.Loop() {
		r.launch(&p.Micro[0], o)
		r.Begin()
		r.End(nil)
	}
}
