package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/gofsdp/gofsdp/cpu"
)

// autoISA is the scaling.isa that leaves the level to the machines.
const autoISA = "auto"

// machine is what a rank tells the others of where it runs.
type machine struct {
	Host string `json:"host"`
	ISA  string `json:"isa"` // the best level there, or slowISA
}

// thisMachine describes where this process runs.
func thisMachine() (machine, error) {
	host, err := os.Hostname()
	if err != nil {
		return machine{}, err
	}
	dev, err := cpu.New(cpu.Options{})
	if err != nil {
		return machine{}, err
	}
	return machine{host, dev.Info().ISA}, dev.Close()
}

// exchanger is how the ranks of a run tell each other a value; see
// launcher.Client.
type exchanger interface {
	Exchange(ctx context.Context, key string, value []byte) ([][]byte, error)
}

// agreeOnISA tells the other ranks what this one's machine has, and returns the
// scaling.isa by which all of them compute: asked is what is configured. All
// ranks call it, and come to the same.
func agreeOnISA(ctx context.Context, x exchanger, asked string, mine machine) (string, error) {
	text, err := json.Marshal(mine)
	if err != nil {
		return "", err
	}
	values, err := x.Exchange(ctx, "machines", text)
	if err != nil {
		return "", err
	}
	all := make([]machine, len(values))
	for rank, v := range values {
		if err := json.Unmarshal(v, &all[rank]); err != nil {
			return "", fmt.Errorf("what rank %d says of its machine: %w", rank, err)
		}
	}
	return commonISA(asked, all)
}

// commonISA returns the level for ranks on these machines: the one that is asked
// for, or for auto the lowest. Ranks at different levels would give other bits
// than one rank does, and in bf16 other weights than each other's.
func commonISA(asked string, all []machine) (string, error) {
	lowest, least := cpu.ISA(0), -1
	for rank, m := range all {
		if (m.ISA == slowISA) != (all[0].ISA == slowISA) {
			return "", fmt.Errorf("rank 0 on %s computes by %s and rank %d on %s by %s: a program that was built without C gives other bits; run one build on all machines",
				all[0].Host, all[0].ISA, rank, m.Host, m.ISA)
		}
		if m.ISA == slowISA {
			continue // it takes the place of any level
		}
		level, err := cpu.ParseISA(m.ISA)
		if err != nil {
			return "", fmt.Errorf("rank %d on %s computes by %s, which this program does not know: run one build on all machines", rank, m.Host, m.ISA)
		}
		if least < 0 || level < lowest {
			lowest, least = level, rank
		}
	}
	switch {
	case least < 0:
		return asked, nil
	case asked == autoISA:
		return lowest.String(), nil
	}
	level, err := cpu.ParseISA(asked)
	if err != nil {
		return "", asUser(fmt.Errorf("scaling.isa: %w", err))
	}
	if level > lowest {
		return "", asUser(fmt.Errorf("scaling.isa: %v is more than the machine of rank %d has, %s, which is %v; auto takes the lowest of all machines", level, least, all[least].Host, lowest))
	}
	return asked, nil
}
