package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/config"
)

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

// mostLines bounds what is printed of one statement: that of a damaged file may
// have a line for each of hundreds of tensors.
const mostLines = 16

// complain prints an error, each of its statements as a line of its own with
// what belongs to it indented below.
func (a *app) complain(err error) {
	for _, s := range a.statements(err) {
		lines := strings.Split(s, "\n")
		if more := len(lines) - mostLines; more > 1 {
			lines = append(lines[:mostLines], fmt.Sprintf("and %d more", more))
		}
		fmt.Fprintf(a.err, "gofsdp: %s\n", strings.Join(lines, "\n  "))
	}
}

// statements returns what is wrong, in the user's words, each thing once: what
// breaks may be noticed again when all is closed. A key that a file or --set gave a value is preceded by that place.
func (a *app) statements(err error) []string {
	var all []string
	for _, e := range flatten(err) {
		text := plain(e.Error())
		key, rest, found := strings.Cut(text, ": ")
		if found && len(a.sources) > 0 {
			if source, known := a.sources[key]; known {
				text = key + ": " + plain(rest)
				if source != (config.Source{}) {
					text = source.String() + ": " + text
				}
			}
		}
		if !slices.ContainsFunc(all, func(said string) bool { return strings.HasSuffix(said, text) }) {
			all = append(all, text)
		}
	}
	return all
}

// flatten returns the errors that errors.Join put together.
func flatten(err error) []error {
	if user, ok := err.(userError); ok {
		return flatten(user.error)
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || err.Error() != errors.Join(joined.Unwrap()...).Error() {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, flatten(e)...)
	}
	return all
}

var (
	// packageName begins the errors of packages that programs call, too.
	packageName = regexp.MustCompile(`(?m)^(?:(?:fsdp|tokenizer|cpu|cuda|nccl|checkpoint|safetensors|no library|no device): )+`)
	// systemCall stands before the path in errors of package os.
	systemCall = regexp.MustCompile(`\b(?:open|lstat|stat|statfs|mkdir|read|write|rename|readdirent|mmap) ([^\s:]+: (?:no such file|permission|not a directory|is a directory|no space|read-only|file name too long|too many|input/output))`)
	// partial is the name of a file before it gets its own.
	partial = regexp.MustCompile(`(?:open |write |sync |rename )?\S+\.partial-\w+: `)
)

// plain leaves out of an error's text what only a programmer needs.
func plain(text string) string {
	text = partial.ReplaceAllString(text, "")
	return systemCall.ReplaceAllString(packageName.ReplaceAllString(text, ""), "$1")
}

// byFlags words remedies for those who have flags and no configuration.
var byFlags = strings.NewReplacer("data.cache_dir", "--cache-dir", " or extend data.include", "", " by data.include", "", "scaling.device: ", "--device ")

// byFlag is asUser for errors about what flags ask for.
func byFlag(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	var all []error
	for _, e := range flatten(err) {
		all = append(all, errors.New(byFlags.Replace(e.Error())))
	}
	return asUser(errors.Join(all...))
}

// textError is asUser for errors about a text that was named on the command
// line: it leaves out the configuration's key, or names the flag instead. After an interruption whatever
// the reading of the text says is of what it was doing.
func (a *app) textError(err error) error {
	if a.ctx.Err() != nil {
		return a.ctx.Err()
	}
	var all []error
	for _, e := range flatten(err) {
		text := strings.TrimPrefix(e.Error(), "data.path: ")
		text = strings.TrimPrefix(text, "cannot read: ")
		text = byFlags.Replace(text)
		all = append(all, errors.New(text))
	}
	return asUser(errors.Join(all...))
}
