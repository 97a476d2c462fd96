package launcher

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	pb "github.com/gofsdp/gofsdp/launcher/gofsdpv1"
)

// joined returns a client in this process, and its agent's end of the link. The
// agent is not heard again unless the test speaks for it.
func joined(t *testing.T) (*Client, *link) {
	t.Helper()
	agent, file, err := linkPair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { agent.Close() })
	fd, err := syscall.Dup(int(file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	t.Setenv(rankVariable, strconv.Itoa(fd))
	start := &pb.Start{Run: "r", Rank: 1, World: 2, LocalRank: 1, LocalRanks: 2, Nodes: 1, Config: []byte("c"), DeadlineNs: int64(time.Minute)}
	if err := agent.write(&pb.ToRank{Kind: &pb.ToRank_Start{Start: start}}); err != nil {
		t.Fatal(err)
	}
	c, err := Join()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Done(0, "") })
	return c, agent
}

func TestAProcessThatIsNoRankIsToldSo(t *testing.T) {
	if _, err := Join(); err == nil || !strings.Contains(err.Error(), "no rank of a run") {
		t.Errorf("joining nothing brings %v", err)
	}
}

func TestARankIsToldWhatItIs(t *testing.T) {
	c, _ := joined(t)
	s := c.Start()
	if s.Run != "r" || s.Rank != 1 || s.World != 2 || s.LocalRank != 1 || s.LocalRanks != 2 || s.Nodes != 1 ||
		string(s.Config) != "c" || s.Deadline != time.Minute || len(s.Files) != 0 {
		t.Errorf("the rank was told %+v", s)
	}
}

func TestAnExchangeRefusesWhatItCannotCarry(t *testing.T) {
	c, _ := joined(t)
	if _, err := c.Exchange(context.Background(), "key", make([]byte, MaxValue+1)); err == nil || !strings.Contains(err.Error(), "65536 is the most") {
		t.Errorf("too large a value brings %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := c.Exchange(ctx, "key", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended brings %v", err)
	}
	if _, err := c.Exchange(context.Background(), "key", nil); err == nil || !strings.Contains(err.Error(), "one under way") {
		t.Errorf("a second exchange of the key brings %v", err)
	}
}

func TestAnExchangeEndsByAllValuesOrByTheRunsEnd(t *testing.T) {
	c, agent := joined(t)
	answers := []*pb.ToRank{
		{Kind: &pb.ToRank_Gathered{Gathered: &pb.Gathered{Key: "a", Values: [][]byte{[]byte("0"), []byte("1")}}}},
		{Kind: &pb.ToRank_Abort{Abort: &pb.Abort{Reason: "rank 0: not finite"}}},
	}
	go func() {
		m := &pb.RankMessage{}
		for len(answers) > 0 && agent.read(m) == nil {
			if m.GetGive() != nil {
				agent.write(answers[0])
				answers = answers[1:]
			}
		}
	}()
	values, err := c.Exchange(context.Background(), "a", []byte("1"))
	if err != nil || len(values) != 2 || string(slices.Concat(values...)) != "01" {
		t.Errorf("the exchange brings %q, %v", values, err)
	}
	_, err = c.Exchange(context.Background(), "b", nil)
	var stopped Stopped
	if !errors.As(err, &stopped) || stopped.Reason != "rank 0: not finite" || stopped.ExitCode() != exitStopped {
		t.Errorf("a run that fails elsewhere brings %v", err)
	}
	if context.Cause(c.Context()) != error(stopped) {
		t.Errorf("the context ended by %v", context.Cause(c.Context()))
	}
}

func TestAnAgentThatSpeaksGarbageIsALostPeerAndIsTold(t *testing.T) {
	c, agent := joined(t)
	agent.Conn.Write(bytes.Repeat([]byte{0xff}, 64))
	<-c.Context().Done()
	var garbled Garbled
	if cause := context.Cause(c.Context()); !errors.As(cause, &garbled) || garbled.ExitCode() != exitLost {
		t.Fatalf("the context ended by %v", cause)
	}
	m := &pb.RankMessage{}
	for m.GetDone() == nil {
		if err := agent.read(m); err != nil {
			t.Fatalf("the agent was not told: %v", err)
		}
	}
	if d := m.GetDone(); d.Code != exitLost || !strings.HasPrefix(d.Reason, "its agent speaks garbage to it: ") {
		t.Errorf("the agent was told %v", d)
	}
}

func TestNothingIsSaidAfterDone(t *testing.T) {
	c, agent := joined(t)
	for i := range 10 {
		if err := c.Report("n", strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Done(4, "hung"); err != nil {
		t.Fatal(err)
	}
	if err := c.Report("n", "late"); !errors.Is(err, errLeft) {
		t.Errorf("a report after the end brings %v", err)
	}
	var said []string
	m := &pb.RankMessage{}
	for agent.read(m) == nil {
		switch {
		case m.GetReport() != nil:
			said = append(said, m.GetReport().Text)
		case m.GetDone() != nil:
			said = append(said, "done "+m.GetDone().Reason)
		}
	}
	if want := []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "done hung"}; !slices.Equal(said, want) {
		t.Errorf("the agent heard %q, want %q", said, want)
	}
}
