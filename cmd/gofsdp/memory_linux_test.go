package main

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/model"
)

// A model whose matrices are large and whose steps are short: beside its arenas
// nothing of 64 MB could hide.
const wideShape = `{"model_type": "qwen2", "vocab_size": 16384, "hidden_size": 256, "intermediate_size": 512,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
  "max_position_embeddings": 128, "tie_word_embeddings": false}`

// FULL=1 goes on to step 200.
func TestARanksProcessTakesThePlansMemoryAndStaysSo(t *testing.T) {
	last := 60
	if os.Getenv("FULL") == "1" {
		last = 200
	}
	for name, args := range map[string][]string{
		"sharing memory": {"--ranks", "2"},
		"over TCP":       {"--ranks", "2", "--strategy", "hybrid_shard", "--set", "scaling.transport=tcp"},
	} {
		t.Run(name, func(t *testing.T) {
			mark := markOf(t)
			shape := filepath.Join(t.TempDir(), "wide")
			if err := os.Mkdir(shape, 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(shape, "config.json"), []byte(wideShape), 0o666); err != nil {
				t.Fatal(err)
			}
			args := append([]string{"train", "run.yaml", "--set", "model=" + shape, "--set", "scaling.threads=1", "--set", "train.batch=2", "--set", "train.eval_every=0"}, args...)
			s := begin(t, []string{mark}, args...)
			cfg, plan := planned(t, s.dir, args[2:])
			after(t, s, 5)
			var pids []int
			for _, pid := range marked(t, mark) {
				if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); bytes.Contains(line, []byte("\x00rank\x00")) {
					pids = append(pids, pid)
				}
			}
			if len(pids) != cfg.Scaling.Workers {
				t.Fatalf("the ranks are %v", pids)
			}
			first := make([]footprint, len(pids))
			for i, pid := range pids {
				first[i] = footprintOf(t, pid)
			}
			after(t, s, last)
			sharing := 1
			if shares(cfg.Scaling.Transport) {
				sharing = cfg.Scaling.Workers
			}
			besides := processMemory(cfg.Scaling)
			if besides > 64e6 {
				t.Errorf("a process of one thread is said to take %d bytes besides, want 64 MB at most", besides)
			}
			for i, pid := range pids {
				now, peers := footprintOf(t, pid), plan.PeerWindows(sharing)
				t.Logf("step %d: %v; the plan has %.1f MB of its own and %.1f MB that others read, and maps %.1f MB of theirs", last, now,
					mb(plan.Bytes()-plan.Arenas[device.Shared].Bytes), mb(plan.Arenas[device.Shared].Bytes), mb(peers))
				if took := now.anon + now.shmem; took > plan.Bytes()+peers+besides || took < plan.Bytes()/2 {
					t.Errorf("a rank takes %.1f MB, its plan says %.1f MB, %.1f MB of other ranks and at most %.1f MB besides", mb(took), mb(plan.Bytes()), mb(peers), mb(besides))
				}
				if grown := now.anon + now.shmem - first[i].anon - first[i].shmem; grown > 4<<20 {
					t.Errorf("a rank takes %.1f MB more in step %d than in step 5, when it was %v", mb(grown), last, first[i])
				}
			}
			s.signal(syscall.SIGINT)
			if status := s.end(); status.ExitStatus() != exitInterrupted {
				t.Errorf("exit code %d; it said\n%s%s", status.ExitStatus(), &s.out, &s.err)
			}
		})
	}
}

// planned returns the configuration of a session's flags, and the plan of its
// first rank.
func planned(t *testing.T, dir string, flags []string) (*config.Config, *fsdp.Plan) {
	t.Helper()
	var cfg config.Config
	b := config.Bind(&cfg)
	b.LoadFile(filepath.Join(dir, "run.yaml"))
	keys := map[string]string{"--ranks": "scaling.num_workers=", "--strategy": "scaling.sharding.strategy=", "--set": ""}
	for i := 0; i < len(flags); i += 2 {
		b.Set(keys[flags[i]] + flags[i+1])
	}
	if err := b.Check(); err != nil {
		t.Fatal(err)
	}
	src, err := model.Resolve(cfg.Model)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := cfg.Train.NewPlanOver(cfg.Scaling.Workers, 0, cfg.Scaling.Layout(), src.Config, cfg.Data.SequenceLength)
	if err != nil {
		t.Fatal(err)
	}
	return &cfg, plan
}

// after waits until the run's table has a step.
func after(t *testing.T, s *session, step int) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if f, err := os.Open(filepath.Join(s.dir, "runs", "mine", "progress.csv")); err == nil {
			rows, err := csv.NewReader(f).ReadAll()
			f.Close()
			if n := len(rows); err == nil && n > 1 {
				if now, err := strconv.Atoi(rows[n-1][0]); err != nil {
					t.Fatal(err)
				} else if now >= step {
					return
				}
			}
		}
		if time.Now().After(end) {
			t.Fatalf("the run did not come to step %d; it said\n%s", step, &s.err)
		}
	}
}

func mb(bytes int64) float64 { return float64(bytes) / 1e6 }

// footprint is what a rank's process has in RAM: its own and of files of memory,
// as /proc/PID/status counts them, and of what that is made up.
type footprint struct {
	anon, shmem int64
	arenas      int64
	windows     int64 // its own and others'
	scratch     int64 // of the threads that compute
	rest        int64 // Go's heap and C's, stacks, data of the program
}

func (f footprint) String() string {
	return fmt.Sprintf("%.1f MB of its own and %.1f MB of files of memory; that is arenas %.1f, windows %.1f, scratch of threads %.1f, heaps and stacks %.1f MB",
		mb(f.anon), mb(f.shmem), mb(f.arenas), mb(f.windows), mb(f.scratch), mb(f.rest))
}

// largestScratch is beyond what a mapping that is no arena has.
const largestScratch = 32 << 20

func footprintOf(t *testing.T, pid int) (f footprint) {
	t.Helper()
	eachLine(t, pid, "status", func(line string) {
		var n int64
		if _, err := fmt.Sscanf(line, "RssAnon: %d kB", &n); err == nil {
			f.anon = n << 10
		}
		if _, err := fmt.Sscanf(line, "RssShmem: %d kB", &n); err == nil {
			f.shmem = n << 10
		}
	})
	if f.anon == 0 {
		t.Skip("this system does not say what a process's memory is")
	}
	var from, to, resident, anonymous int64
	var window bool
	eachLine(t, pid, "smaps", func(line string) {
		var n, begin, end int64
		switch key, rest, _ := strings.Cut(line, ":"); {
		case key == "Rss":
			fmt.Sscanf(rest, "%d kB", &n)
			resident = n << 10
		case key == "Anonymous":
			fmt.Sscanf(rest, "%d kB", &n)
			anonymous = n << 10
		case key == "VmFlags": // the last of a mapping; hg is for those who asked for large pages
			large := slices.Contains(strings.Fields(rest), "hg")
			switch {
			case window:
				f.windows += resident
			case large && to-from > largestScratch:
				f.arenas += anonymous
			case large:
				f.scratch += anonymous
			default:
				f.rest += anonymous
			}
		default:
			if _, err := fmt.Sscanf(line, "%x-%x ", &begin, &end); err == nil {
				from, to, window = begin, end, strings.Contains(line, " /memfd:")
			}
		}
	})
	return f
}

func eachLine(t *testing.T, pid int, file string, do func(line string)) {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		do(lines.Text())
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}
