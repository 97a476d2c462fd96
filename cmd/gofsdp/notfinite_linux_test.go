package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/launcher"
	"github.com/gofsdp/gofsdp/record"
	"github.com/gofsdp/gofsdp/train"
)

// A model in whose embedding the row of one letter is spoilt trains well until a
// rank comes to that letter.
func TestTheRankThatMeetsANaNFirstIsTheReasonForAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := map[string]string{
		"shape/config.json": strings.Replace(sessionShape, `"tie_word_embeddings": true`, `"tie_word_embeddings": false`, 1),
		"run.yaml":          sessionConfig,
	}
	for i := range 8 {
		text := strings.Repeat(fmt.Sprintf("the %d cats and the old dogs run. ", i), 30)
		if i%2 == 1 { // some of these are trained on
			text += "Z" + text
		}
		files[fmt.Sprintf("text/%d.txt", i)] = text
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(text), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	gofsdp := func(args ...string) (code int, out, said string) {
		var stdout, stderr bytes.Buffer
		c := exec.Command("gofsdp", args...)
		c.Dir, c.Stdout, c.Stderr = dir, &stdout, &stderr
		c.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(dir, ".cache"))
		c.Run() // its error is the exit code
		return c.ProcessState.ExitCode(), stdout.String(), stderr.String()
	}
	if code, out, said := gofsdp("train", "run.yaml", "--set", "train.steps=1", "--set", "train.batch=4"); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, out, said)
	}
	spoilRow(t, filepath.Join(dir, "runs", "mine", "model"), "Z")

	for _, c := range []struct {
		ranks, strategy, where string
	}{
		{"2", "no_shard", `Embed: Out.* embed`},
		{"2", "full_shard", `embed`}, // all have it, as soon as it is gathered
		{"4 --mesh 2x2", "shard_optimizer", `Embed: Out.* embed`},
		{"4 --mesh 2x2", "hybrid_shard", `embed`},
	} {
		name := strings.NewReplacer(" --mesh ", "-").Replace(c.ranks) + "-" + c.strategy
		args := append(strings.Fields("train run.yaml --ranks "+c.ranks),
			"--strategy", c.strategy, "--set", "run.name="+name, "--set", "model=runs/mine/model", "--set", "data.tokenizer=model",
			"--set", "train.batch=4", "--set", "train.micro_batch=1", "--set", "train.steps=100")
		code, out, said := gofsdp(args...)
		word := regexp.MustCompile(`^gofsdp: (rank (\d): step (\d+): the gradient is not finite: micro-batch \d: .*` + c.where + `.*; lower train.lr, .*)\n$`)
		found := word.FindStringSubmatch(said)
		if code != exitFailure || found == nil {
			t.Errorf("%s: exit code %d, want %d and %q; it said\n%s%s", name, code, exitFailure, word, out, said)
			continue
		}
		run, err := record.LoadRun(filepath.Join(dir, "runs", name, "run.json"))
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := run.Outcome.ExitCode.Get(); got != exitFailure || run.Outcome.State != record.Failed || run.Outcome.Reason != found[1] {
			t.Errorf("%s: recorded as %+v, it said %s", name, run.Outcome, said)
		}
		// All have kept the weights of the step before, as one rank does.
		var step int
		fmt.Sscan(found[3], &step)
		if want := fmt.Sprintf("failed after step %d; the weights are in runs/%s/model\n", step-1, name); step > 1 && !strings.Contains(out, want) {
			t.Errorf("%s: want %q:\n%s", name, want, out)
		}
	}
}

// spoilRow writes NaNs over a token's row of a directory's embedding.
func spoilRow(t *testing.T, dir, token string) {
	t.Helper()
	var tokenizer struct {
		Model struct{ Vocab map[string]int }
	}
	text, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
	if err == nil {
		err = json.Unmarshal(text, &tokenizer)
	}
	id, known := tokenizer.Model.Vocab[token]
	if err != nil || !known {
		t.Fatalf("the tokenizer has no %s: %v", token, err)
	}
	path := filepath.Join(dir, "model.safetensors")
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	size := binary.LittleEndian.Uint64(file)
	var header map[string]struct {
		Shape   []int `json:"shape"`
		Offsets []int `json:"data_offsets"`
	}
	if err := json.Unmarshal(file[8:8+size], &header); err != nil {
		t.Fatal(err)
	}
	embedding := header["model.embed_tokens.weight"]
	row := file[8+int(size)+embedding.Offsets[0]+4*id*embedding.Shape[1]:]
	for i := range embedding.Shape[1] {
		binary.LittleEndian.PutUint32(row[4*i:], math.Float32bits(float32(math.NaN())))
	}
	if err := os.WriteFile(path, file, 0o666); err != nil {
		t.Fatal(err)
	}
}

func TestOnlyWhoIsTheReasonEndsAsTheReason(t *testing.T) {
	going, end := context.WithCancelCause(context.Background())
	ended, cancel := context.WithCancelCause(context.Background())
	defer end(nil)
	cancel(launcher.Stopped{Reason: "rank 1: not finite"})
	garbled, spoil := context.WithCancelCause(context.Background())
	spoil(launcher.Garbled{})
	aborted := fmt.Errorf("micro-batch: %w", &collective.Error{Kind: "all-gather", Err: errors.New("rank 1 gave up")})
	for _, c := range []struct {
		name string
		word context.Context // the launcher's
		err  error
		code int
	}{
		{"a rank that met a NaN first", going, &train.NotFinite{Where: errors.New("Embed")}, 1},
		{"even where it then could not keep the weights", ended, errors.Join(&train.NotFinite{Where: errors.New("Embed")}, aborted), 1},
		{"a rank that met it later", going, &train.NotFinite{Elsewhere: true}, 6},
		{"a rank whose collective another ended", going, aborted, 6},
		{"a rank that was ended by the launcher", ended, aborted, 6},
		{"a rank that was ended while it loaded", ended, context.Canceled, 6},
		{"a rank with a failure of its own, when others have ended, too", ended, errors.New("no space left"), 1},
		{"a rank whose agent speaks garbage", garbled, aborted, 5},
		{"a rank that waited in vain", going, &collective.Error{Missing: []int{1}, Err: collective.ErrDeadline}, 4},
		{"a rank that lost a peer", going, &collective.Error{Missing: []int{1}, Err: errors.New("reset by peer")}, 5},
	} {
		if code := (&app{ctx: context.Background()}).codeOf(lost(c.word, c.err)); code != c.code {
			t.Errorf("%s ends with %d, want %d", c.name, code, c.code)
		}
	}
}
