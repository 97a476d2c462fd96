// Command gofsdp trains Qwen-family language models. Each file is one
// sub-command, which reads its flags, picks implementations and calls the
// packages that do the work; nothing else of the program may choose a device.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
	"golang.org/x/term"
)

// The exit codes of this program, as README lists them.
const (
	exitFailure     = 1 // it would fail again
	exitUser        = 2 // the user's mistake
	exitInterrupted = 130
	exitTerminated  = 143
)

// commands is the command line. Its flags are frozen by a test.
type commands struct {
	Train    trainCommand    `cmd:"" help:"Train a model by a configuration."`
	Plan     planCommand     `cmd:"" help:"Show what a configuration would take, without running it."`
	Init     initCommand     `cmd:"" help:"Write a commented configuration with all defaults."`
	Config   configCommand   `cmd:"" help:"About configurations."`
	Generate generateCommand `cmd:"" help:"Continue a text with a model."`
	Eval     evalCommand     `cmd:"" help:"Measure a model's loss on a text."`
	Data     dataCommand     `cmd:"" help:"Prepare data."`
	Bench    benchCommand    `cmd:"" help:"Measure this machine and the operations on it."`
	Version  versionCommand  `cmd:"" help:"Print the version."`
}

// app is what sub-commands run with.
type app struct {
	ctx      context.Context
	out      io.Writer
	err      io.Writer
	terminal bool // out is one
	caught   *os.Signal
}

// printf writes to the user.
func (a *app) printf(format string, args ...any) { fmt.Fprintf(a.out, format, args...) }

// userError is a mistake that only the user can mend.
type userError struct{ error }

func (e userError) Unwrap() error { return e.error }

// asUser marks an error as the user's mistake.
func asUser(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return userError{err}
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run parses and executes a command line and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, caught, stop := interruptible()
	defer stop()
	a := &app{ctx: ctx, out: stdout, err: stderr, caught: caught}
	if f, ok := stdout.(*os.File); ok {
		a.terminal = term.IsTerminal(int(f.Fd()))
	}
	code := -1
	parser, err := kong.New(&commands{}, kong.Name("gofsdp"),
		kong.Description("Trains Qwen-family language models with fully sharded data parallelism, in one binary."),
		kong.UsageOnError(), kong.Writers(stdout, stderr), kong.Exit(func(c int) { code = c }), kong.Bind(a))
	if err != nil {
		panic(err)
	}
	command, err := parser.Parse(args)
	if code >= 0 { // --help has been printed
		return code
	}
	if err != nil {
		fmt.Fprintf(stderr, "gofsdp: %v; gofsdp --help lists commands and flags\n", err)
		return exitUser
	}
	return a.exitCode(command.Run(a))
}

// codeOf returns the exit code for an error.
func (a *app) codeOf(err error) int {
	var user userError
	switch {
	case err == nil:
		return 0
	case *a.caught != nil && errors.Is(err, context.Canceled):
		if *a.caught == syscall.SIGTERM {
			return exitTerminated
		}
		return exitInterrupted
	case errors.As(err, &user):
		return exitUser
	}
	return exitFailure
}

// exitCode prints an error, unless the user asked for the end, and returns the
// code for it.
func (a *app) exitCode(err error) int {
	code := a.codeOf(err)
	if code != 0 && code != exitInterrupted && code != exitTerminated {
		fmt.Fprintf(a.err, "gofsdp: %v\n", err)
	}
	return code
}

// interruptible returns a context that the first Ctrl-C or SIGTERM ends, and
// which signal it was. A second one ends the program at once.
func interruptible() (context.Context, *os.Signal, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	caught := new(os.Signal)
	go func() {
		s, ok := <-signals
		if !ok {
			return
		}
		*caught = s
		signal.Stop(signals)
		cancel()
	}()
	return ctx, caught, func() {
		signal.Stop(signals)
		close(signals)
		cancel()
	}
}
