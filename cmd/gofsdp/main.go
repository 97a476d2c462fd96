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
	"regexp"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/gofsdp/gofsdp/config"
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
	Doctor   doctorCommand   `cmd:"" help:"Show what this machine has of what training needs, and what to do about what it lacks."`
	GPUCheck gpuCheckCommand `cmd:"" name:"gpu-check" help:"Hold this machine's GPUs against all that is claimed of them."`
	Flight   flightCommand   `cmd:"" help:"Show where the ranks of a failed run stood."`
	Version  versionCommand  `cmd:"" help:"Print the version."`

	// What the launcher starts.
	Agent agentCommand `cmd:"" hidden:"" help:"A node's part of a run: started by gofsdp train."`
	Rank  rankCommand  `cmd:"" hidden:"" help:"A rank's part of a run: started by an agent."`
}

// app is what sub-commands run with.
type app struct {
	ctx      context.Context // ends with an interruption
	out      io.Writer
	err      io.Writer
	terminal bool                     // out is one
	unsaid   error                    // why out could not be written
	sources  map[string]config.Source // of the values of the configuration
}

// printf writes to the user. The first error becomes that of the command.
func (a *app) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(a.out, format, args...); err != nil && a.unsaid == nil {
		a.unsaid = err
	}
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run parses and executes a command line and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := interruptible()
	defer stop()
	a := &app{ctx: ctx, out: stdout, err: stderr}
	if f, ok := stdout.(*os.File); ok {
		a.terminal = term.IsTerminal(int(f.Fd()))
	}
	code := -1
	parser := newParser(kong.Writers(stdout, stderr), kong.Exit(func(c int) { code = c }), kong.Bind(a))
	if len(args) == 0 { // to be shown what there is, but no success
		parser.Stdout = stderr
		parser.Parse([]string{"--help"})
		return exitUser
	}
	command, err := parser.Parse(args)
	if code >= 0 { // --help has been printed
		return code
	}
	if err != nil {
		fmt.Fprintf(stderr, "gofsdp: %s\n", usageError(err))
		return exitUser
	}
	if err = command.Run(a); err == nil {
		err = a.unsaid
	}
	if code = a.codeOf(err); code != 0 && code != exitInterrupted && code != exitTerminated {
		a.complain(err)
	}
	return code
}

// newParser returns the parser of the command line.
func newParser(options ...kong.Option) *kong.Kong {
	return kong.Must(&commands{}, append(options, kong.Name("gofsdp"),
		kong.Description("Trains Qwen-family language models with fully sharded data parallelism, in one binary."))...)
}

// usageError says what is wrong with a command line, and where to look.
func usageError(err error) string {
	help := "gofsdp --help"
	var parse *kong.ParseError
	if errors.As(err, &parse) {
		if at := parse.Context.Command(); at != "" {
			// Without the arguments, which stand there as <name>.
			at, _, _ = strings.Cut(at, " <")
			help = "gofsdp " + at + " --help"
		}
	}
	return fmt.Sprintf("%s (see %s)", parserWords.Replace(noValue.ReplaceAllString(err.Error(), "missing value")), help)
}

// parserWords puts the parser's words for types and places into a user's.
var parserWords = strings.NewReplacer(
	"a valid 64 bit int", "a whole number", "a valid 64 bit uint", "a whole number that is not negative",
	"expected float value", "expected a number", " (short flag)", "", `, expecting "<arg>"`, "",
	`expected "<`, `missing argument "<`,
)

// noValue is what the parser says of a flag at the command line's end.
var noValue = regexp.MustCompile(`expected \w+ value but got "EOL" \(<EOL>\)`)

// codeOf returns the exit code for an error.
func (a *app) codeOf(err error) int {
	var user userError
	var by interface{ ExitCode() int } // an interruption, or that the run failed elsewhere
	switch {
	case err == nil:
		return 0
	case errors.Is(err, context.Canceled) && errors.As(context.Cause(a.ctx), &by):
		return by.ExitCode()
	case errors.As(err, &user):
		return exitUser
	}
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return exitFailure
}

// interruption is why the context of an app ends.
type interruption struct{ signal syscall.Signal }

func (i interruption) Error() string { return "interrupted by " + unix.SignalName(i.signal) }

// ExitCode is that of a process which the interruption ends.
func (i interruption) ExitCode() int {
	if i.signal == syscall.SIGTERM {
		return exitTerminated
	}
	return exitInterrupted
}

// Is makes an interruption a cancellation to those who pass on its cause.
func (interruption) Is(target error) bool { return target == context.Canceled }

// interruptible returns a context that the first Ctrl-C or SIGTERM ends. A
// second one ends the program at once.
func interruptible() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		if s, ok := <-signals; ok {
			signal.Stop(signals)
			cancel(interruption{s.(syscall.Signal)}) // there are no others
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		cancel(nil)
	}
}
