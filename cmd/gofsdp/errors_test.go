package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/cpu"
)

func TestAnErrorIsToldInTheUsersWords(t *testing.T) {
	two := errors.Join(errors.New("one"), errors.Join(errors.New("fsdp: two"), nil))
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"a key with its place", errors.New("train.batch: 3 is odd"), "gofsdp: run.yaml:7: train.batch: 3 is odd\n"},
		{"a key that has its default", errors.New("train.lr: is low"), "gofsdp: train.lr: is low\n"},
		{"joined errors, a line each", asUser(two), "gofsdp: one\ngofsdp: two\n"},
		{"the same noticed again", errors.Join(errors.New("step 3: no space"), errors.New("no space")), "gofsdp: step 3: no space\n"},
		{"what belongs to one, indented", fmt.Errorf("do not fit:\n%w", two), "gofsdp: do not fit:\n  one\n  two\n"},
		{"many lines, the first of them", errors.New(strings.Repeat("a\n", 40) + "a"), "gofsdp: a\n" + strings.Repeat("  a\n", 15) + "  and 25 more\n"},
		{"a package's name behind a key", errors.New("data.tokenizer: tokenizer: is empty"), "gofsdp: data.tokenizer: is empty\n"},
		{"a system call", fmt.Errorf("data.path: open x.txt: no such file or directory"), "gofsdp: data.path: x.txt: no such file or directory\n"},
		{"a file that is not whole yet", errors.New("writing a/b.json: open a/.b.json.partial-0a1b: no space left on device: free some"), "gofsdp: writing a/b.json: no space left on device: free some\n"},
		{"words that are no system call", errors.New("it cannot read or open x: why not"), "gofsdp: it cannot read or open x: why not\n"},
	} {
		var out strings.Builder
		a := &app{err: &out, sources: map[string]config.Source{
			"train.batch": {Name: "run.yaml", Line: 7, Column: 3}, "train.lr": {}, "data.tokenizer": {}, "data.path": {},
		}}
		if a.complain(c.err); out.String() != c.want {
			t.Errorf("%s: printed %q, want %q", c.name, out.String(), c.want)
		}
	}
}

func TestExitCodesTellWhoIsToAct(t *testing.T) {
	ended := func(by syscall.Signal) context.Context {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(interruption{by})
		return ctx
	}
	broken := errors.New("broken")
	for _, c := range []struct {
		name string
		ctx  context.Context
		err  error
		want int
	}{
		{"nothing wrong", context.Background(), nil, 0},
		{"nothing wrong when Ctrl-C came", ended(syscall.SIGINT), nil, 0},
		{"a failure", context.Background(), broken, 1},
		{"a failure when Ctrl-C came", ended(syscall.SIGINT), broken, 1},
		{"the user's mistake", context.Background(), fmt.Errorf("x: %w", asUser(broken)), 2},
		{"Ctrl-C", ended(syscall.SIGINT), fmt.Errorf("x: %w", context.Canceled), 130},
		{"SIGTERM, passed on as the context's cause", ended(syscall.SIGTERM), interruption{syscall.SIGTERM}, 143},
		{"a cancellation that nobody asked for", context.Background(), context.Canceled, 1},
	} {
		if got := (&app{ctx: c.ctx}).codeOf(c.err); got != c.want {
			t.Errorf("%s: exit code %d, want %d", c.name, got, c.want)
		}
	}
}

func TestAnInstructionSetThatTheMachineLacksIsRefused(t *testing.T) {
	for _, c := range []struct {
		asked string
		has   cpu.ISA
		want  string
	}{
		{"avx2", cpu.AVX512, ""},
		{"generic", cpu.Generic, ""},
		{"avx512", cpu.AVX2, "scaling.isa: avx512 is more than this machine has, which is avx2; auto takes the best that there is"},
	} {
		got := ""
		if err := checkISA(c.asked, c.has); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s on a machine of %v: %q, want %q", c.asked, c.has, got, c.want)
		}
	}
}

func TestSizesAreReadAsPeopleWriteThem(t *testing.T) {
	for text, want := range map[string]int64{"24GiB": 24 << 30, "16GB": 16e9, "1.5 MiB": 3 << 19, "1000": 1000, "2b": 2, "3tb": 3e12} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("%q is read as %d (%v), want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "GiB", "0", "-1GB", "3 apples", "1.2.3GB", "nan"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("%q is read as %d, want an error", text, got)
		}
	}
}
