package launcher

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/gofsdp/gofsdp/launcher/gofsdpv1"
)

func TestTwoRanksStartExchangeReportAndEnd(t *testing.T) {
	var out, err bytes.Buffer
	job := script{Steps: 5, Dir: t.TempDir()}.job(t)
	job.Stdout, job.Stderr = &out, &err
	reports := map[int][]string{}
	job.OnReport = func(rank int, kind, text string) { reports[rank] = append(reports[rank], kind+text) }
	outcome, failed := Run(context.Background(), job)
	if failed != nil {
		t.Fatal(failed)
	}
	if want := (Outcome{Rank: -1}); outcome != want {
		t.Fatalf("the run ended with %+v, want %+v; it said\n%s%s", outcome, want, &out, &err)
	}
	for r := range 2 {
		if want := []string{"step0", "step1", "step2", "step3", "step4"}; !slices.Equal(reports[r], want) {
			t.Errorf("rank %d reported %v, want %v", r, reports[r], want)
		}
		log, _ := os.ReadFile(filepath.Join(job.Dir, "logs", fmt.Sprintf("rank-%d.log", r)))
		for _, line := range []string{"all steps are done\n", "no complaints\n"} {
			if !strings.Contains(string(log), line) {
				t.Errorf("the log of rank %d is %q, and lacks %q", r, log, line)
			}
		}
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	slices.Sort(lines)
	if want := []string{"[rank 1] all steps are done", "all steps are done"}; !slices.Equal(lines, want) {
		t.Errorf("the run printed %q, want %q", lines, want)
	}
	if _, err := os.Stat(filepath.Join(job.Dir, "control.json")); !os.IsNotExist(err) {
		t.Errorf("the secret outlives the run: %v", err)
	}
}

func TestRanksOfTwoNodesExchangeInOrder(t *testing.T) {
	var out bytes.Buffer
	job := script{Steps: 5, Nodes: 2, Dir: t.TempDir()}.job(t)
	job.Stdout, job.Stderr = &out, &out
	before := descriptors(t)
	outcome, err := Run(context.Background(), job)
	if want := (Outcome{Rank: -1}); err != nil || outcome != want {
		t.Fatalf("the run ended with %+v, %v; it said\n%s", outcome, err, &out)
	}
	for _, line := range []string{"[rank 1] all", "[rank 2] all", "[rank 3] all"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("the run printed %q, and lacks %q", &out, line)
		}
	}
	if after := descriptors(t); after > before {
		t.Errorf("the run leaves %d descriptors", after-before)
	}
}

func TestEachRankBeginsWithAnEnvironmentOfItsOwn(t *testing.T) {
	var out bytes.Buffer
	job := script{Steps: 1, Act: "environment", Dir: t.TempDir()}.job(t)
	job.Stdout, job.Stderr, job.Environment = &out, &out, []string{"A=1", ownVariable + "=of the job"}
	outcome, err := Run(context.Background(), job)
	if want := (Outcome{Rank: -1}); err != nil || outcome != want {
		t.Fatalf("the run ended with %+v, %v; it said\n%s", outcome, err, &out)
	}
	for r := range 2 {
		if want := fmt.Sprintf("rank %d, job [A=1 %s=of the job]\n", r, ownVariable); !strings.Contains(out.String(), want) {
			t.Errorf("the run printed %q, and lacks %q", &out, want)
		}
	}
}

func TestARankWhoseEnvironmentIsNotKnownEndsTheRunByName(t *testing.T) {
	var out bytes.Buffer
	job := script{Steps: 1, Act: "unprepared", Rank: 1, Dir: t.TempDir()}.job(t)
	job.Stdout, job.Stderr = &out, &out
	outcome, err := Run(context.Background(), job)
	if want := (Outcome{exitFailure, "rank 1 could not be started: nobody knows its environment", 1}); err != nil || outcome != want {
		t.Fatalf("the run ended with %+v, %v, want %+v; it said\n%s", outcome, err, want, &out)
	}
}

// descriptors counts those of this process.
func descriptors(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(entries)
}

// heldUp is a terminal at which somebody pressed Ctrl-S.
type heldUp struct{ until <-chan time.Time }

func (h heldUp) Write(p []byte) (int, error) {
	<-h.until
	return len(p), nil
}

func TestATerminalThatIsHeldUpHoldsUpTheRunAndEndsNothing(t *testing.T) {
	t.Parallel()
	until := make(chan time.Time)
	held := hang + hang/2
	job := script{Steps: 200, Act: "chatter", Dir: t.TempDir(), Deadline: hang}.job(t)
	job.Stdout, job.Stderr = heldUp{until}, os.Stderr
	began := time.Now()
	time.AfterFunc(held, func() { close(until) })
	outcome, err := Run(context.Background(), job)
	if want := (Outcome{Rank: -1}); err != nil || outcome != want {
		t.Errorf("the run ended with %+v, %v", outcome, err)
	}
	if took := time.Since(began); took < held {
		t.Errorf("the run took %v, and its output was held up for %v: it did not come to the test", took, held)
	}
}

func TestAJobThatCannotRunIsRefusedWithAllMistakes(t *testing.T) {
	_, err := Run(context.Background(), Job{Dir: t.TempDir()})
	for _, want := range []string{"0 nodes with 0 ranks", "launcher.deadline", "launcher.start_within", "needs a Placer"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, and lacks %q", err, want)
		}
	}
}

func TestAnAgentThatCannotBePlacedIsAnOutcome(t *testing.T) {
	job := script{Dir: t.TempDir()}.job(t)
	job.Placer = Local{Command: []string{filepath.Join(job.Dir, "missing")}}
	job.Stdout, job.Stderr = os.Stdout, os.Stderr
	outcome, err := Run(context.Background(), job)
	if err != nil || outcome.Code != exitNoResources || !strings.Contains(outcome.Reason, "missing") {
		t.Errorf("the run ended with %+v, %v", outcome, err)
	}
}

func TestAgentsThatNeverRegisterAreGivenUp(t *testing.T) {
	job := script{Dir: t.TempDir()}.job(t)
	job.Placer = Local{Command: []string{"sleep", "3600"}}
	job.Stdout, job.Stderr = os.Stdout, os.Stderr
	job.StartWithin = 100 * time.Millisecond
	outcome, err := Run(context.Background(), job)
	if err != nil || outcome.Code != exitNoResources || !strings.Contains(outcome.Reason, "0 of 1 nodes") {
		t.Errorf("the run ended with %+v, %v", outcome, err)
	}
}

func TestStrangersAreRefusedAndDisturbNobody(t *testing.T) {
	p := launch(t, script{})
	p.rank(1)
	path := controlPath(p.dir)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("%s has mode %v", path, info.Mode())
	}
	known, err := readControl(path)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		conn, err := net.Dial("tcp", known.Address)
		if err != nil {
			t.Fatal(err)
		}
		garbage := make([]byte, 4096)
		rand.Read(garbage)
		conn.Write(garbage)
		defer conn.Close() // held open meanwhile
	}
	wrong := known
	wrong.Secret = "guessed"
	if err := visit(wrong); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a wrong secret brings %v", err)
	}
	wrong = known
	wrong.Fingerprint = strings.Repeat("0", 64)
	if err := visit(wrong); err == nil || !strings.Contains(err.Error(), "not the run's own") {
		t.Errorf("another's key brings %v", err)
	}
	if err := visit(known); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an agent that begins by a beat brings %v", err)
	}
	p.cmd.Process.Signal(os.Interrupt)
	if code, o := p.end(deadline + slack); code != exitInterrupted {
		t.Errorf("the run ended with %d: %+v", code, o)
	}
}

// visit calls the launcher as an agent that does not register.
func visit(c control) error {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	connection, stream, err := attend(ctx, c)
	if err != nil {
		return err
	}
	defer connection.Close()
	stream.Send(&pb.AgentMessage{Kind: &pb.AgentMessage_Beat{Beat: &pb.Beat{}}})
	_, err = stream.Recv()
	return err
}
