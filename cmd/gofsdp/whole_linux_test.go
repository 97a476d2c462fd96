package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/gofsdp/gofsdp/launcher/gofsdpv1"
	"github.com/gofsdp/gofsdp/record"
)

// whole is a run of the program in processes of its own.
type whole struct {
	t     *testing.T
	dir   string // where it is started
	mark  string // in the environment of all its processes
	run   *exec.Cmd
	ended chan struct{}

	spreadOut
	deadline time.Duration
}

// newCommon makes the text, the shapes and the cache that runs share.
func newCommon(t *testing.T) string {
	dir := t.TempDir()
	const shape = `{"model_type": "qwen2", "vocab_size": 320, "hidden_size": %d, "intermediate_size": %d, "num_hidden_layers": %d,
  "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 128, "tie_word_embeddings": true}`
	files := map[string]string{
		"small/config.json": fmt.Sprintf(shape, 32, 64, 2),
		"large/config.json": fmt.Sprintf(shape, 128, 1024, 2), // to take a while to write
	}
	for i := range 48 {
		files[fmt.Sprintf("text/%d.txt", i)] = strings.Repeat(fmt.Sprintf("the %d cats and the old dogs run. ", i), 60)
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(text), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// beginWhole starts a run that has the failure's moment in it.
func beginWhole(t *testing.T, common string, f failure, deadline time.Duration) *whole {
	t.Helper()
	model, steps, holdout, extra := "small", 1000000, 0.1, ""
	switch f.moment {
	case evaluating:
		holdout, extra = 0.5, ", eval_every: 1, eval_packs: 1000000"
	case exporting:
		model, steps = "large", 1
	case sampling:
		steps, extra = 1, ", sample: {tokens: 100, prompts: ["+strings.Repeat(`"the", `, 5000)+"]}"
	case ending:
		steps = 1
	}
	w := &whole{t: t, dir: t.TempDir(), spreadOut: f.spreadOut, deadline: deadline, ended: make(chan struct{})}
	w.mark = "GOFSDP_TEST_MARK=" + w.dir
	config := fmt.Sprintf(`
model: %[1]s/%[2]s
data: {path: [%[1]s/text], holdout: %[9]v, sequence_length: 16, tokenizer: train, vocab_size: 270, cache_dir: %[1]s/cache}
train: {steps: %[3]d, batch: 12, micro_batch: 1, baseline: none%[4]s}
scaling: {num_workers: %[5]d, nodes: %[6]d, threads: 1, sharding: {mesh: %[7]s, strategy: full_shard}}
run: {processes: {deadline: %[8]v}}
`, common, model, steps, extra, f.ranks, f.nodes, f.mesh, deadline, holdout)
	if err := os.WriteFile(filepath.Join(w.dir, "run.yaml"), []byte(config), 0o666); err != nil {
		t.Fatal(err)
	}
	w.run = w.command("train", "run.yaml")
	out, err := os.Create(filepath.Join(w.dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	errs, err := os.Create(filepath.Join(w.dir, "err"))
	if err != nil {
		t.Fatal(err)
	}
	defer errs.Close()
	w.run.Stdout, w.run.Stderr = out, errs
	if err := w.run.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		w.run.Wait() // its error is the exit code
		close(w.ended)
	}()
	t.Cleanup(func() {
		for _, pid := range marked(t, w.mark) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		<-w.ended
		if t.Failed() {
			out := w.read("out")
			t.Logf("the program said\n%s%s", out[max(len(out)-1000, 0):], w.read("err"))
		}
	})
	return w
}

func (w *whole) command(args ...string) *exec.Cmd {
	c := exec.Command("gofsdp", args...)
	c.Dir = w.dir
	c.Env = append(os.Environ(), w.mark)
	return c
}

func (w *whole) read(name string) []byte {
	text, err := os.ReadFile(filepath.Join(w.dir, name))
	if err != nil {
		w.t.Error(err)
	}
	return text
}

func (w *whole) runDir() string { return filepath.Join(w.dir, "runs", "run-0001") }

func (w *whole) hasEnded() bool {
	select {
	case <-w.ended:
		return true
	default:
		return false
	}
}

// await polls until something holds, which is to be within the deadline.
func (w *whole) await(what string, holds func() bool) {
	w.t.Helper()
	within := w.deadline + failureSlack
	for end := time.Now().Add(within); !holds(); time.Sleep(3 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("%s: not within %v; there are %v", what, within, marked(w.t, w.mark))
		}
	}
}

var firstStep = regexp.MustCompile(`(?m)^step +1/`)

// until waits for a failure's moment in the run, and says whether it came before the end.
func (w *whole) until(f failure) bool {
	w.t.Helper()
	came := map[moment]func() bool{
		placed: func() bool {
			if strings.HasPrefix(f.process, "agent") {
				return w.pid(f.process) > 0
			}
			return len(w.pids("agent")) > 0
		},
		loading:    func() bool { return len(w.pids("rank")) == w.ranks },
		stepping:   func() bool { return firstStep.Match(w.read("out")) },
		evaluating: func() bool { return firstStep.Match(w.read("out")) },
		exporting: func() bool {
			begun, _ := filepath.Glob(filepath.Join(w.runDir(), ".model.partial-*"))
			_, err := os.Stat(filepath.Join(w.runDir(), "model"))
			return len(begun) > 0 || err == nil
		},
		sampling: func() bool { return bytes.Contains(w.read("out"), []byte("continued:")) },
		ending:   func() bool { return bytes.Contains(w.read("out"), []byte("the weights are in")) },
	}[f.moment]
	for end := time.Now().Add(3 * time.Minute); !came(); time.Sleep(3 * time.Millisecond) {
		if w.hasEnded() {
			return came()
		}
		if time.Now().After(end) {
			w.t.Fatalf("%s: not within three minutes", f.moment)
		}
	}
	return true
}

// pids returns the processes of a sub-command, in the order of their start.
func (w *whole) pids(command string) (pids []int) {
	for _, pid := range marked(w.t, w.mark) {
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); bytes.Contains(line, []byte("\x00"+command+"\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// pid returns a process of the run by its name; 0 where it has ended.
func (w *whole) pid(process string) int {
	role, number, _ := strings.Cut(process, " ")
	var n int
	fmt.Sscan(number, &n)
	agents := w.pids("agent")
	switch {
	case role == "launcher":
		return w.run.Process.Pid
	case len(agents) < w.nodes && role == "rank", n >= len(agents) && role == "agent":
		return 0
	case role == "agent":
		return agents[n]
	}
	// An agent starts its ranks in their order.
	perNode := w.ranks / w.nodes
	ranks := slices.DeleteFunc(w.pids("rank"), func(pid int) bool { return parentOf(pid) != agents[n/perNode] })
	if len(ranks) < perNode {
		return 0
	}
	return ranks[n%perNode]
}

// parentOf returns the process that started another, 0 where that has ended.
func parentOf(pid int) (parent int) {
	if f := statOf(pid); len(f) > 1 {
		parent, _ = strconv.Atoi(f[1])
	}
	return parent
}

// lastWord is what the launcher said at its end of why, or "".
func (w *whole) lastWord() string {
	words := strings.Split("\n"+strings.TrimRight(string(w.read("err")), "\n"), "\ngofsdp: ")
	last := words[len(words)-1]
	if len(words) == 1 || strings.HasPrefix(last, "agent: ") {
		return ""
	}
	return strings.ReplaceAll(last, "\n  ", "\n") // what belongs to it is indented
}

// again runs the configuration once more, beside what is left of the first run.
func (w *whole) again() {
	w.t.Helper()
	next := w.command("train", "run.yaml", "--set", "train.steps=1", "--set", "train.sample.prompts=[]", "--set", "run.processes.deadline=20s")
	if out, err := next.CombinedOutput(); err != nil {
		w.t.Errorf("the next run: %v\n%s", err, out)
	}
	if run, err := record.LoadRun(filepath.Join(w.dir, "runs", "run-0002", "run.json")); err != nil || run.Outcome.State != record.Succeeded {
		w.t.Errorf("the next run is recorded as %+v (%v)", run, err)
	}
}

// visitors come to the launcher with garbage, and with another secret, for which they are to be refused.
func visitors(t *testing.T, control string) error {
	t.Helper()
	var c struct{ Address string }
	text, err := os.ReadFile(control)
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	for i := 0; i < 3 && err == nil; i++ {
		var conn net.Conn
		if conn, err = net.Dial("tcp", c.Address); err == nil {
			noise := make([]byte, 4096)
			rand.Read(noise)
			conn.Write(noise)
			t.Cleanup(func() { conn.Close() }) // held open meanwhile
		}
	}
	if err != nil {
		return err
	}
	// What it is to be refused for is its secret alone.
	anybody := credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
	conn, err := grpc.NewClient("passthrough:///"+c.Address, grpc.WithTransportCredentials(anybody), grpc.WithNoProxy())
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), failureDeadline+failureSlack)
	defer cancel()
	stream, err := pb.NewControlClient(conn).Attend(metadata.AppendToOutgoingContext(ctx, "gofsdp-secret", "guessed"))
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unauthenticated {
		return fmt.Errorf("a wrong secret brings %w", err)
	}
	return nil
}

// spoil writes garbage on the streams of a process, in its name.
func spoil(t *testing.T, pid, family int) error {
	t.Helper()
	streams := streamsOf(t, pid, family)
	defer func() { // held, they would not end with their process
		for _, fd := range streams {
			unix.Close(fd)
		}
	}()
	if len(streams) == 0 {
		return fmt.Errorf("process %d has no such stream", pid)
	}
	for _, fd := range streams {
		if _, err := unix.Write(fd, bytes.Repeat([]byte{0xff}, 64)); err != nil {
			t.Logf("garbage cannot be written: %v", err) // one tells of another meanwhile
		}
	}
	return nil
}

// streamsOf borrows the streams of another process; the caller closes them.
func streamsOf(t *testing.T, pid, family int) (streams []int) {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil // it has ended
	}
	defer unix.Close(process)
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, link := range links {
		var there int
		if to, _ := os.Readlink(link); !strings.HasPrefix(to, "socket:") {
			continue
		}
		fmt.Sscan(filepath.Base(link), &there)
		fd, err := unix.PidfdGetfd(process, there, 0)
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
			t.Skipf("nobody may speak for another process here: %v", err)
		}
		if err != nil {
			continue // closed meanwhile
		}
		domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		kind, err2 := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
		if err == nil && err2 == nil && domain == family && kind == unix.SOCK_STREAM {
			streams = append(streams, fd)
		} else {
			unix.Close(fd)
		}
	}
	return streams
}
