//go:build !(sim && cgo && linux)

package main

import "errors"

// simulated refuses: the simulator is for tests, and no part of what users get.
func simulated(ranks, local int) (*gpus, error) {
	return nil, errors.New("scaling.device: sim: this program has no simulated GPUs, which are for tests; build one that has: go build -tags sim ./cmd/gofsdp (on Linux, with a C compiler), or make train DEVICE=sim")
}
