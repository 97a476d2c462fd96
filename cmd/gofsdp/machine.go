package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/cpu"
	"github.com/gofsdp/gofsdp/cuda"
)

// The devices that scaling.device names.
const (
	autoDevice = "auto"
	cpuDevice  = "cpu"
	cudaDevice = "cuda"
	simDevice  = "sim"
)

// machine is what a rank tells the others of where it runs.
type machine struct {
	Host string `json:"host"`
	ISA  string `json:"isa"` // the best level there, or slowISA
	GPU  gpu    `json:"gpu"` // which the rank would take; the zero value where none is looked for
}

// gpu is a rank's GPU, as far as ranks have to agree on it.
type gpu struct {
	Lacks      string `json:"lacks,omitempty"`      // why there is none that can be used, and the remedy
	Broken     bool   `json:"broken,omitempty"`     // where there is none that can be used: there is one, or its driver, all the same
	Name       string `json:"name,omitempty"`       // "" where there is none that can be used
	Capability string `json:"capability,omitempty"` // "8.9"
	Driver     string `json:"driver,omitempty"`
	NCCL       string `json:"nccl,omitempty"` // its version, and the file
}

// thisMachine describes where this process runs, without GPUs.
func thisMachine() (machine, error) {
	host, err := os.Hostname()
	if err != nil {
		return machine{}, err
	}
	dev, err := cpu.New(cpu.Options{})
	if err != nil {
		return machine{}, err
	}
	return machine{Host: host, ISA: dev.Info().ISA}, dev.Close()
}

// exchanger is how the ranks of a run tell each other a value; see
// launcher.Client.
type exchanger interface {
	Exchange(ctx context.Context, key string, value []byte) ([][]byte, error)
}

// agreement is what the ranks of a run compute by.
type agreement struct {
	device string   // cpuDevice, cudaDevice or simDevice
	isa    string   // of a CPU; of a GPU what is configured
	notes  []string // what a user should know of it
}

// agreeOn tells the other ranks what this one's machine has, and returns by what
// all of them compute. All ranks call it, and come to the same.
func agreeOn(ctx context.Context, x exchanger, s config.Scaling, mine machine) (agreement, error) {
	text, err := json.Marshal(mine)
	if err != nil {
		return agreement{}, err
	}
	values, err := x.Exchange(ctx, "machines", text)
	if err != nil {
		return agreement{}, err
	}
	all := make([]machine, len(values))
	for rank, v := range values {
		if err := json.Unmarshal(v, &all[rank]); err != nil {
			return agreement{}, fmt.Errorf("what rank %d says of its machine: %w", rank, err)
		}
	}
	return agreementOf(s, all)
}

// agreementOf is what ranks on these machines come to.
func agreementOf(s config.Scaling, all []machine) (a agreement, err error) {
	a.isa = s.ISA
	a.device, a.notes, err = settle(s, all)
	if err == nil && a.device == cpuDevice {
		a.isa, err = commonISA(s.ISA, all)
	}
	return a, err
}

// settle returns what ranks on these machines compute on, and what of it a user
// should know. What else is asked for must be possible there.
func settle(s config.Scaling, all []machine) (kind string, notes []string, err error) {
	if kind, notes, err = commonDevice(s.Device, all); err != nil {
		return kind, notes, err
	}
	note, unreached := networkOn(s, kind)
	if note != "" {
		notes = append(notes, note)
	}
	return kind, notes, errors.Join(graphsOn(s, kind), unreached)
}

// networkOn refuses a network that is demanded between nodes whose ranks do not use
// NCCL, and notes that ranks of one node use none.
func networkOn(s config.Scaling, kind string) (note string, err error) {
	asked := s.NCCL.Require
	switch {
	case asked == "any", asked == "":
	case s.Nodes == 1:
		note = fmt.Sprintf("scaling.nccl.require: %s, and nothing is demanded: the ranks are on one node and use no network", asked)
	case kind == cpuDevice:
		err = asUser(fmt.Errorf("scaling.nccl.require: %s, and ranks on CPUs reach other nodes over TCP, without NCCL; let GPUs compute (scaling.device: cuda), or leave it at any", asked))
	}
	return note, err
}

// graphsOn refuses graphs that are asked for where there can be none.
func graphsOn(s config.Scaling, kind string) error {
	if s.Graphs == "on" && kind == cpuDevice {
		return asUser(fmt.Errorf("scaling.graphs: on, and the CPU that computes has no graphs; auto makes them where GPUs compute"))
	}
	return nil
}

// commonDevice returns what ranks on these machines compute on, and what of it a
// user should know.
func commonDevice(asked string, all []machine) (kind string, notes []string, err error) {
	who := func(rank int) string {
		if len(all) == 1 {
			return "this machine"
		}
		return fmt.Sprintf("rank %d on %s", rank, all[rank].Host)
	}
	has, lacks, broken := -1, -1, -1 // the first rank of each
	for rank, m := range all {
		switch {
		case m.GPU.Name != "" && has < 0:
			has = rank
		case m.GPU.Name == "" && lacks < 0:
			lacks = rank
		}
		if m.GPU.Broken && broken < 0 {
			broken = rank
		}
	}
	switch {
	case asked == cpuDevice:
		return cpuDevice, nil, nil
	case lacks < 0:
		if notes, err = alikeGPUs(all); err != nil {
			return "", nil, err
		}
		if asked == autoDevice {
			return cudaDevice, notes, nil
		}
		return asked, notes, nil
	case asked != autoDevice:
		return "", nil, asUser(fmt.Errorf("scaling.device: %s, and %s has no GPU to compute on: %s", asked, who(lacks), plain(all[lacks].GPU.Lacks)))
	case has >= 0:
		return "", nil, asUser(fmt.Errorf("scaling.device: auto takes GPUs for all ranks or CPUs for all, and %s has %s while %s has no GPU to compute on: %s; or let all compute on CPUs by scaling.device: cpu",
			who(has), all[has].GPU.Name, who(lacks), plain(all[lacks].GPU.Lacks)))
	case broken >= 0:
		notes = append(notes, fmt.Sprintf("computing on the CPU, since %s has no GPU to compute on: %s (scaling.device: cpu says that the CPU is meant)", who(broken), plain(all[broken].GPU.Lacks)))
	}
	return cpuDevice, notes, nil
}

// alikeGPUs refuses ranks with different versions of NCCL, which do not work
// together, and ranks on GPUs of different architectures: each one's compiler
// makes other code of the kernels, which rounds otherwise, so that the copies of
// weights that ranks update by themselves would drift apart unseen. Of GPUs of one
// architecture that differ, or of different drivers, it notes that each step takes
// as long as the slowest.
func alikeGPUs(all []machine) (notes []string, err error) {
	first := all[0].GPU
	for rank, m := range all {
		g := m.GPU
		mine, _, _ := strings.Cut(g.NCCL, " ")
		if theirs, _, _ := strings.Cut(first.NCCL, " "); mine != theirs {
			return nil, asUser(fmt.Errorf("scaling.device: rank 0 on %s has NCCL %s and rank %d on %s has NCCL %s: different versions do not work together; install one on all machines, or let %s name its file",
				all[0].Host, first.NCCL, rank, m.Host, g.NCCL, cuda.OverrideNCCL))
		}
		if g.Capability != first.Capability {
			return nil, asUser(fmt.Errorf("scaling.device: rank 0 on %s has %s (compute capability %s) and rank %d on %s has %s (%s): GPUs of different architectures round differently, and copies of weights would drift apart; take one kind",
				all[0].Host, first.Name, first.Capability, rank, m.Host, g.Name, g.Capability))
		}
		if (g.Name != first.Name || g.Driver != first.Driver) && len(notes) == 0 {
			notes = append(notes, fmt.Sprintf("rank 0 on %s has %s (driver %s) and rank %d on %s has %s (driver %s): each step takes as long as the slowest",
				all[0].Host, first.Name, first.Driver, rank, m.Host, g.Name, g.Driver))
		}
	}
	return notes, nil
}
