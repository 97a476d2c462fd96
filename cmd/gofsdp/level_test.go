package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/cpu"
	"github.com/gofsdp/gofsdp/launcher"
	"github.com/gofsdp/gofsdp/record"
)

func TestRanksComputeByTheLowestLevelOfTheirMachines(t *testing.T) {
	on := func(levels ...string) (all []machine) {
		for i, l := range levels {
			all = append(all, machine{Host: fmt.Sprintf("node-%c", 'a'+i), ISA: l})
		}
		return all
	}
	for name, c := range map[string]struct {
		asked string
		all   []machine
		want  string
		wrong []string // what the error says
		user  bool     // whose mistake it is
	}{
		"all alike":                              {"auto", on("avx512", "avx512"), "avx512", nil, false},
		"the first is the lowest":                {"auto", on("avx2", "avx512bf16"), "avx2", nil, false},
		"the last is the lowest":                 {"auto", on("avx512bf16", "avx512", "generic"), "generic", nil, false},
		"a rank alone":                           {"auto", on("avx512bf16"), "avx512bf16", nil, false},
		"a level that all have":                  {"avx2", on("avx512bf16", "avx512"), "avx2", nil, false},
		"a level that is the lowest":             {"avx512", on("avx512bf16", "avx512"), "avx512", nil, false},
		"a level that one lacks":                 {"avx512", on("avx512bf16", "avx512", "avx2"), "", []string{"scaling.isa: avx512 is more", "rank 2 has, node-c, which is avx2", "auto takes the lowest"}, true},
		"a level that several lack":              {"avx512bf16", on("avx512", "generic", "avx2"), "", []string{"rank 1 has, node-b, which is generic"}, true},
		"a level that nobody knows":              {"sse9", on("avx512", "avx2"), "", []string{"scaling.isa", "sse9"}, true},
		"a machine of a later program":           {"auto", on("avx512", "avx1024"), "", []string{"rank 1 on node-b", "avx1024", "one build"}, false},
		"builds without C":                       {"auto", on("go", "go"), "auto", nil, false},
		"a build without C among others":         {"auto", on("avx2", "go"), "", []string{"rank 0 on node-a computes by avx2 and rank 1 on node-b by go", "one build"}, false},
		"a build with C among those without one": {"generic", on("go", "go", "avx2"), "", []string{"rank 2 on node-c by avx2"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := commonISA(c.asked, c.all)
			if got != c.want || (err == nil) != (len(c.wrong) == 0) {
				t.Fatalf("the ranks take %q (%v), want %q", got, err, c.want)
			}
			for _, w := range c.wrong {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("the error does not say %q: %v", w, err)
				}
			}
			if code := (&app{ctx: t.Context()}).codeOf(err); err != nil && (code == exitUser) != c.user {
				t.Errorf("it ends with exit code %d: %v", code, err)
			}
		})
	}
}

// differing is a run whose ranks say that they are on these machines, each of
// one rank. It travels as the configuration.
type differing struct {
	Device   string
	Asked    string
	Machines []machine
}

// differingCommand is what the test below starts its agents by.
const differingCommand = "gofsdp-differing"

// differingMain is an agent, or a rank that an agent has started.
func differingMain() {
	if len(os.Args) > 1 {
		differingRankMain()
	}
	os.Exit(launcher.RunAgent(context.Background(), []string{differingCommand, "rank"}, launcher.Node{}))
}

// differingRankMain agrees with the other ranks as rankCommand does, and prints
// what it comes to.
func differingRankMain() {
	client, err := launcher.Join()
	if err != nil {
		panic(err)
	}
	var d differing
	if err := json.Unmarshal(client.Start().Config, &d); err != nil {
		panic(err)
	}
	here := d.Machines[client.Start().Rank]
	code, reason := 0, ""
	if err := introduce(client, here, nil); err != nil {
		panic(err)
	}
	all, err := agreeOn(client.Context(), client, config.Scaling{Device: d.Device, ISA: d.Asked}, here)
	if err != nil {
		code, reason = (&app{ctx: client.Context()}).codeOf(err), err.Error()
	} else {
		fmt.Println(strings.Join(append(all.notes, "computes by "+all.device+" "+all.isa), "; "))
	}
	if err := client.Done(code, reason); err != nil {
		panic(err)
	}
	os.Exit(code)
}

func TestProcessesOnDifferentMachinesAgreeOrAreRefusedByName(t *testing.T) {
	t.Parallel()
	l4 := gpu{Name: "NVIDIA L4", Capability: "8.9", Driver: "535.161.08"}
	on := func(gpus ...gpu) []machine {
		return []machine{{"node-a", "avx512bf16", gpus[0]}, {"node-b", "avx2", gpus[1]}, {"node-c", "avx512", gpus[2]}}
	}
	cpus := on(gpu{}, gpu{}, gpu{})
	for _, c := range []struct {
		device, asked string
		machines      []machine
		code          int
		says          string
	}{
		{"auto", "auto", cpus, 0, "computes by cpu avx2"},
		{"cpu", "generic", cpus, 0, "computes by cpu generic"},
		{"auto", "avx512", cpus, exitUser, "scaling.isa: avx512 is more than the machine of rank 1 has, node-b, which is avx2"},
		{"auto", "avx512", on(l4, l4, l4), 0, "computes by cuda avx512"},
		{"cuda", "auto", on(l4, l4, gpu{Lacks: "no library: libcuda.so.1 is not here"}), exitUser, "scaling.device: cuda, and rank 2 on node-c has no GPU to compute on: libcuda.so.1 is not here"},
	} {
		config, err := json.Marshal(differing{c.device, c.asked, c.machines})
		if err != nil {
			t.Fatal(err)
		}
		dir, err := record.Create(filepath.Join(t.TempDir(), "run"))
		if err != nil {
			t.Fatal(err)
		}
		a, err := beginAttempt(dir, nil, len(c.machines), 1)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		outcome, err := launcher.Run(t.Context(), launcher.Job{
			Settings: launcher.Settings{Deadline: time.Minute, StartWithin: time.Minute},
			Run:      "test", Nodes: len(c.machines), Ranks: 1, Mesh: "1x1", Config: config, Dir: dir.Path(),
			Placer: launcher.Local{Command: []string{differingCommand}, Stderr: os.Stderr}, Stdout: &out, Stderr: &out, OnReport: a.report,
		})
		if err != nil || outcome.Code != c.code {
			t.Fatalf("asked for %s %s, the run ended with %+v (%v), want exit code %d; it said\n%s", c.device, c.asked, outcome, err, c.code, &out)
		}
		if c.code == 0 && strings.Count(out.String(), c.says+"\n") != len(c.machines) || c.code != 0 && !strings.Contains(outcome.Reason, c.says) {
			t.Errorf("asked for %s %s, the ranks said %q and the reason is %q, want %q of each", c.device, c.asked, &out, outcome.Reason, c.says)
		}
		list := a.end(record.OutcomeOf(outcome.Code, outcome.Reason))
		for i, n := range list[0].Nodes {
			if n.Number != i || n.Ranks != 1 || n.ISA != record.Known(c.machines[i].ISA) {
				t.Errorf("asked for %s %s, node %d is recorded as %+v", c.device, c.asked, i, n)
			}
		}
	}
}

func TestTheRecordSaysWhatRanWhere(t *testing.T) {
	t.Parallel()
	best, err := thisMachine()
	if err != nil {
		t.Fatal(err)
	}
	computed := cpu.Generic.String()
	if best.ISA == slowISA {
		computed = slowISA
	}
	for _, c := range []struct {
		ranks    int
		args     []string
		mesh     string
		strategy string
	}{
		{1, nil, "1x1", "no_shard"},
		{4, []string{"--ranks", "4", "--mesh", "2x2", "--strategy", "hybrid_shard"}, "2x2", "hybrid_shard"},
	} {
		if c.ranks > 1 && runtime.GOOS != "linux" {
			continue
		}
		s := begin(t, nil, append([]string{"train", "run.yaml", "--set", "train.steps=1", "--set", "scaling.isa=generic"}, c.args...)...)
		agent := s.run.Process.Pid
		if status := s.end(); status.ExitStatus() != 0 {
			t.Fatalf("exit code %d; it said\n%s%s", status.ExitStatus(), &s.out, &s.err)
		}
		dir, err := record.Open(filepath.Join(s.dir, "runs", "mine"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir.AttemptsFile()); !os.IsNotExist(err) {
			t.Errorf("%d ranks: attempts.json outlives the run (%v)", c.ranks, err)
		}
		run, err := record.LoadRun(dir.RunFile())
		if err != nil {
			t.Fatal(err)
		}
		if run.Device != record.Known(cpuDevice) {
			t.Errorf("%d ranks: recorded as computed on %v", c.ranks, run.Device)
		}
		if run.Mesh != record.Known(c.mesh) || run.Strategy != record.Known(c.strategy) || run.ISA != record.Known(computed) {
			t.Errorf("%d ranks: recorded as mesh %v, strategy %v, computed by %v", c.ranks, run.Mesh, run.Strategy, run.ISA)
		}
		if len(run.Attempts) != 1 || len(run.Attempts[0].Nodes) != 1 {
			t.Fatalf("%d ranks: the attempts are %+v", c.ranks, run.Attempts)
		}
		a, n := run.Attempts[0], run.Attempts[0].Nodes[0]
		began, ended := a.Began, time.Time{}
		if ended, _ = a.Ended.Get(); began.Before(run.Started) || ended.Before(began) {
			t.Errorf("%d ranks: the run started at %v, its attempt went from %v to %v", c.ranks, run.Started, began, a.Ended)
		}
		if code, known := a.Outcome.ExitCode.Get(); a.Outcome.State != record.Succeeded || !known || code != 0 || a.Number != 0 || a.Ranks != c.ranks {
			t.Errorf("%d ranks: the attempt is %+v", c.ranks, a)
		}
		pid, _ := n.PID.Get()
		if (pid == agent) != (c.ranks == 1) || pid <= 0 || n.Ranks != c.ranks || n.Number != 0 || n.ISA != record.Known(best.ISA) {
			t.Errorf("%d ranks: the node is %+v; the program was process %d", c.ranks, n, agent)
		}
		if h, known := n.Host.Get(); !known || h != record.ThisHost() {
			t.Errorf("%d ranks: the node's machine is %v", c.ranks, n.Host)
		}
	}
}

func TestAnAttemptThatWasKilledIsRecordedWithItsNodes(t *testing.T) {
	t.Parallel()
	s := begin(t, nil, "train", "run.yaml", "--ranks", "2")
	s.until("step ")
	dir, err := record.Open(filepath.Join(s.dir, "runs", "mine"))
	if err != nil {
		t.Fatal(err)
	}
	// While it goes on, the launcher's part is in its own file.
	run, err := dir.ReadRun()
	if err != nil {
		t.Fatal(err)
	}
	if len(run.Attempts) != 1 || run.Attempts[0].Outcome.State != record.Running {
		t.Fatalf("the attempts are %+v", run.Attempts)
	}
	agent, known := run.Attempts[0].Nodes[0].PID.Get()
	if !known {
		t.Fatalf("the node is %+v", run.Attempts[0].Nodes[0])
	}
	process, err := os.FindProcess(agent)
	if err == nil {
		err = process.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
	if status := s.end(); status.ExitStatus() != exitLost {
		t.Fatalf("exit code %d, want %d; it said\n%s%s", status.ExitStatus(), exitLost, &s.out, &s.err)
	}
	if run, err = record.LoadRun(dir.RunFile()); err != nil {
		t.Fatal(err)
	}
	for what, o := range map[string]record.Outcome{"run": run.Outcome, "attempt": run.Attempts[0].Outcome} {
		if code, _ := o.ExitCode.Get(); o.State != record.Failed || code != exitLost || !strings.Contains(o.Reason, "the agent of node 0") {
			t.Errorf("the %s is recorded as %+v", what, o)
		}
	}
	if run.Attempts[0].Nodes[0].PID != record.Known(agent) {
		t.Errorf("the node is %+v", run.Attempts[0].Nodes[0])
	}
}

// The level is agreed on by what a configuration may say.
func TestTheConfigurationKnowsEveryLevel(t *testing.T) {
	for isa := cpu.Generic; isa <= cpu.AVX512BF16; isa++ {
		var cfg config.Config
		b := config.Bind(&cfg)
		b.Set("data.path=text")
		b.Set("scaling.isa=" + isa.String())
		if err := b.Check(); err != nil || cfg.Scaling.ISA != isa.String() {
			t.Errorf("%v: %v", isa, err)
		}
	}
}
