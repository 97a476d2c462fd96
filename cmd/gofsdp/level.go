package main

import (
	"fmt"

	"github.com/gofsdp/gofsdp/cpu"
)

// autoISA is the scaling.isa that leaves the level to the machines.
const autoISA = "auto"

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
