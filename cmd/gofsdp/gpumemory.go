package main

import (
	"fmt"

	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/cpu"
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/train"
)

// What a rank takes of its GPU's memory besides its plan. None of it has been
// measured: no GPU has been asked yet. They are what is commonly seen, and NCCL's
// own constants.
const (
	// contextBytes is the driver's context: its own data, and the stacks and print
	// buffers of all threads that the GPU can run at once.
	contextBytes = 450 << 20
	// modulesBytes is the machine code of the kernels, which the driver makes of 2 MiB
	// of PTX, and of those of cuBLAS that products take, which it loads at first use.
	modulesBytes = 128 << 20
	// A communicator has buffers for each channel and neighbour of its ring: for the
	// protocols LL, LL128 and simple together ncclBufferBytes, by NCCL 2.29's constants
	// (src/transport/shm.cc and the defaults of NCCL_BUFFSIZE and its sisters). The
	// channels are as many as NCCL finds the links to be worth: 2 to 4 over PCIe, up
	// to 32 over NVLink.
	ncclBufferBytes = 9637888
	ncclChannels    = 8
	ncclNeighbours  = 2
	// agreementBytes is what package nccl has for a communicator's agreements.
	agreementBytes = 64 << 10
	// gpuProcess is what a rank's process takes of the host's memory besides its plan
	// more than one on a CPU: the driver's and the libraries' own data.
	gpuProcess = 600 << 20
)

// ownStreams are those that an engine computes, gathers and reduces in, and the one
// that the device's peak is measured in.
const ownStreams = 4

// taken is a row of what a rank takes of its GPU besides its plan.
type taken struct {
	bytes   int64
	what    string
	certain bool // it is what our own code asks for
}

// gpuTaken returns the rows for a rank of a mesh on a GPU of a compute capability
// from major on. The simulator has no context and no code of its own.
func gpuTaken(kind string, mesh fsdp.Mesh, rank, major int) []taken {
	comms := 0
	for _, axis := range []fsdp.Axis{fsdp.Across, fsdp.Within} {
		if mesh.Along(axis) > 1 {
			comms += 2 // one gathers and one reduces
		}
	}
	streams := ownStreams + comms
	var rows []taken
	if kind == cudaDevice {
		rows = append(rows,
			taken{bytes: contextBytes, what: "the driver's context"},
			taken{bytes: modulesBytes, what: "code of kernels, ours and cuBLAS's"})
	}
	rows = append(rows, taken{int64(streams) * cuda.Workspace(major), fmt.Sprintf("cuBLAS's workspaces of %d streams", streams), true})
	if comms > 0 {
		each := int64(agreementBytes)
		if kind == cudaDevice {
			each += ncclChannels * ncclNeighbours * ncclBufferBytes
		}
		rows = append(rows, taken{int64(comms) * each, train.Number(comms, "communicator") + " of NCCL's", kind == simDevice})
	}
	return rows
}

// apart is what is to be known of GPUs before a plan of so many ranks on this
// machine runs on them; nil for the CPU.
func (c choice) apart(s config.Scaling, mesh fsdp.Mesh) *train.Apart {
	if c.gpus == nil {
		return nil
	}
	a := &train.Apart{Process: c.process(s), Host: hostMemory(), Ranks: s.Workers / s.Nodes, Lacks: noKernel}
	for _, row := range gpuTaken(c.kind, mesh, 0, c.major()) {
		a.Besides += row.bytes
	}
	return a
}

// process is the most that a rank's process takes of the host's memory besides its
// plan.
func (c choice) process(s config.Scaling) int64 {
	if c.kind == cudaDevice {
		return processMemory(s) + gpuProcess
	}
	return processMemory(s)
}

// unknownMajor stands for a GPU that is not here: of those there are the one with
// the largest workspaces.
const unknownMajor = 9

// major is the first number of the GPUs' compute capability.
func (c choice) major() int {
	if devices := c.gpus.report.Devices; len(devices) > 0 {
		return devices[0].Major
	}
	return unknownMajor
}

// hostMemory is what this machine's ranks may have of its memory; 0 where that is
// not known.
func hostMemory() int64 {
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		return 0
	}
	defer dev.Close() // of memory and threads it has had none but this
	return dev.Info().Memory
}

// noKernel says why GPUs cannot do an operation of a plan.
func noKernel(op device.Op) error {
	err := cuda.Runs(op)
	if err == nil {
		return nil
	}
	remedy := "take a model that fits"
	switch op.(type) {
	case *device.Attention, *device.AttentionBackward, *device.AttentionDecode:
		remedy += " (head_dim of its config.json, or hidden_size / num_attention_heads where that is left out)"
	}
	return fmt.Errorf("%w; %s, or compute on the CPU by scaling.device: cpu", err, remedy)
}
