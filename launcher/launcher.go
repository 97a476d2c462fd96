package launcher

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	pb "github.com/gofsdp/gofsdp/launcher/gofsdpv1"
)

// The exit codes of a run and of its ranks.
const (
	exitFailure     = 1   // it would fail again
	exitNoResources = 3   // agents never came
	exitHung        = 4   // somebody did not answer
	exitLost        = 5   // a device, link or peer was lost
	exitStopped     = 6   // because of another; never the reason
	exitInterrupted = 130 // Ctrl-C
	exitTerminated  = 143 // SIGTERM
)

// Settings are how patient a run is.
type Settings struct {
	Deadline    time.Duration `yaml:"deadline" default:"10s" min:"1s" max:"1h" help:"Time within which a process that hangs, is stopped or dies ends the run."`
	StartWithin time.Duration `yaml:"start_within" default:"10m" min:"1s" max:"24h" help:"Time to wait for all nodes before the run is given up."`
}

// Job is one attempt at a run.
type Job struct {
	Settings
	Run         string   // name of the run
	Attempt     int      // from 0
	Nodes       int      // agents
	Ranks       int      // of each node
	Mesh        string   // passed on to the ranks, which know what it means
	Config      []byte   // the resolved configuration, passed on
	Environment []string // NAME=value each, added to every rank's
	Dir         string   // the run directory, which exists

	Placer         Placer
	Listen         string // address to listen at; "" is 127.0.0.1 at any port
	Stdout, Stderr io.Writer
	// OnReport is called with what ranks report, in each rank's order, and
	// never twice at once. It may be nil, and must not block for long.
	OnReport func(rank int, kind, text string)
}

// Outcome is how a run ended.
type Outcome struct {
	Code   int    // exit code for the launcher's process
	Reason string // why, "" where all is well; names the rank or node
	Rank   int    // that was the reason, -1 where none was
}

// check returns all that is wrong with a job.
func (j *Job) check() error {
	var wrong []error
	if j.Nodes < 1 || j.Ranks < 1 {
		wrong = append(wrong, fmt.Errorf("a run of %d nodes with %d ranks each: both must be 1 or more", j.Nodes, j.Ranks))
	}
	if j.Deadline < 100*time.Millisecond {
		wrong = append(wrong, fmt.Errorf("launcher.deadline: %v is too short for processes to answer in; take 1s or more", j.Deadline))
	}
	if j.StartWithin <= 0 {
		wrong = append(wrong, fmt.Errorf("launcher.start_within: %v leaves no time to start; take 1s or more", j.StartWithin))
	}
	if j.Placer == nil || j.Stdout == nil || j.Stderr == nil {
		wrong = append(wrong, errors.New("a job needs a Placer, Stdout and Stderr"))
	}
	return errors.Join(wrong...)
}

// Run starts a job's processes and blocks until all have ended and nothing is
// left of them. When ctx ends, every rank is asked to end after the step at
// hand; the outcome's code is then that of the cause's method ExitCode() int,
// or 130. An error means that nothing was started.
func Run(ctx context.Context, job Job) (Outcome, error) {
	if err := job.check(); err != nil {
		return Outcome{}, err
	}
	logs, err := filepath.Abs(filepath.Join(job.Dir, "logs"))
	if err != nil {
		return Outcome{}, err
	}
	if err := os.MkdirAll(logs, 0o777); err != nil {
		return Outcome{}, fmt.Errorf("making a folder for the ranks' output: %w", err)
	}
	address := job.Listen
	if address == "" {
		address = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return Outcome{}, fmt.Errorf("listening for agents: %w", err)
	}
	known, certificate, err := newControl()
	if err != nil {
		listener.Close()
		return Outcome{}, fmt.Errorf("making the run's key: %w", err)
	}
	known.Address = listener.Addr().String()
	if err := known.write(job.Dir); err != nil {
		listener.Close()
		return Outcome{}, fmt.Errorf("writing how agents reach the launcher: %w", err)
	}
	defer os.Remove(controlPath(job.Dir))

	printer := newPrinter(job.Stdout, job.Stderr)
	defer printer.close()
	service := &service{
		control: known, timing: timingOf(job.Deadline), perNode: job.Ranks, printer: printer,
		events: make(chan event), done: make(chan struct{}),
	}
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}})),
		grpc.StreamInterceptor(service.guard), grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.ConnectionTimeout(job.Deadline), grpc.WaitForHandlers(true),
	)
	pb.RegisterControlServer(server, service)
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.Serve(listener) // ends by Stop
	}()
	defer func() {
		close(service.done)
		server.Stop()
		<-served
	}()
	g := newGang(&job, known, logs)
	return g.run(ctx, service.events), nil
}

// exitCodeOf returns the exit code of a run whose context ended by a cause.
func exitCodeOf(cause error) int {
	var coded interface{ ExitCode() int }
	if errors.As(cause, &coded) {
		return coded.ExitCode()
	}
	return exitInterrupted
}
