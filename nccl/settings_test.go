package nccl_test

import (
	"slices"
	"testing"

	"github.com/gofsdp/gofsdp/nccl"
)

func TestTheEnvironmentPutsALogOfEachRankIntoTheFolderAndKeepsTheOrder(t *testing.T) {
	got := nccl.Settings{Require: "any"}.Environment("evidence", 7)
	want := []string{
		"NCCL_DEBUG=INFO",
		"NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,ENV,NET,GRAPH,SHM,P2P",
		"NCCL_DEBUG_FILE=evidence/nccl.rank-0007.%h.%p.log",
		"NCCL_LAUNCH_ORDER_IMPLICIT=1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := (nccl.Settings{}).Environment("", 7); !slices.Equal(got, []string{"NCCL_LAUNCH_ORDER_IMPLICIT=1"}) {
		t.Errorf("without a directory for a log: %q", got)
	}
	if got := (nccl.Settings{Require: "efa"}).Environment("evidence", 7); !slices.Equal(got, append(want, "FI_PROVIDER=efa")) {
		t.Errorf("%q", got)
	}
}

func TestANetworkIsDemandedBetweenNodesAlone(t *testing.T) {
	efa := nccl.Settings{Require: "efa"}
	if got := efa.On(2); got != efa {
		t.Errorf("on two nodes it is %+v", got)
	}
	if got := efa.On(1); got != (nccl.Settings{Require: "any"}) {
		t.Errorf("on one node it is %+v", got)
	}
}
