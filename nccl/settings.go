package nccl

import (
	"fmt"
	"path/filepath"
)

// Settings are what a user says about NCCL.
type Settings struct {
	Require string `yaml:"require" default:"any" enum:"any,efa" help:"Network that NCCL must use between nodes: with efa it fails where its Libfabric plugin is not there or finds no EFA, instead of falling back to TCP; any takes what NCCL finds. Ranks of one node use no network, so nothing is demanded of them."`
}

// On returns the settings of ranks that are on so many nodes: those of one use no network, so none is demanded.
func (s Settings) On(nodes int) Settings {
	if nodes == 1 {
		s.Require = "any"
	}
	return s
}

// network is the name of the plugin that is demanded, empty for any. The plugin of AWS calls itself Libfabric
// since 1.13; Libfabric's provider is then demanded by FI_PROVIDER (see Environment).
func (s Settings) network() string {
	if s.Require == "efa" {
		return "Libfabric"
	}
	return ""
}

// Environment returns the variables that a rank's process is to be started with; without a dir those of the log
// are left out. The variables go into the
// environment that the process begins with, since setting them later races with the threads of C libraries.
//
// NCCL writes what it decides into a file of the rank's in dir, which must exist: its standard output loses lines
// when a Go process ends. NCCL puts host and process into the file's name. Its level is INFO, and the subsystems
// are those that say which network and which paths are used, at initialisation alone.
//
// A GPU's communicators are used at once, and NCCL's kernels hold what they have of the GPU while they wait for
// their peers. So that no two ranks wait for each other with different ones, the GPU runs them in the order in
// which they were started (NCCL_LAUNCH_ORDER_IMPLICIT, since 2.26), which is the same on all ranks: overlapping
// with a driver of CUDA 12.3 or newer, one by one with an older one.
func (s Settings) Environment(dir string, rank int) []string {
	var list []string
	if dir != "" {
		list = append(list,
			"NCCL_DEBUG=INFO",
			"NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,ENV,NET,GRAPH,SHM,P2P",
			"NCCL_DEBUG_FILE="+filepath.Join(dir, fmt.Sprintf("nccl.rank-%04d.%%h.%%p.log", rank)))
	}
	list = append(list, "NCCL_LAUNCH_ORDER_IMPLICIT=1")
	if s.Require == "efa" {
		list = append(list, "FI_PROVIDER=efa")
	}
	return list
}
