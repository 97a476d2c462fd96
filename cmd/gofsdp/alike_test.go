package main

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// answers is an exchanger whose other ranks have answered already.
type answers struct {
	mine   int
	others []string
	err    error
}

func (a answers) Exchange(_ context.Context, _ string, value []byte) ([][]byte, error) {
	var all [][]byte
	for rank, o := range a.others {
		if all = append(all, []byte(o)); rank == a.mine {
			all[rank] = value
		}
	}
	return all, a.err
}

func TestRanksWithOtherTextsAreRefusedByName(t *testing.T) {
	for _, c := range []struct {
		others []string
		says   string
	}{
		{[]string{"5e1f", "", "5e1f"}, ""},
		{[]string{"5e1f", "", "77aa"}, "data.path: rank 2 has read another text than rank 0 (fingerprints 77aa and 5e1f)"},
		{[]string{"77aa", "", "77aa"}, "data.path: rank 1 has read another text"},
	} {
		err := alike(t.Context(), answers{mine: 1, others: c.others}, "5e1f")
		code := (&app{ctx: t.Context()}).codeOf(err)
		if (err == nil) != (c.says == "") || err != nil && (!strings.Contains(err.Error(), c.says) || code != exitUser) {
			t.Errorf("others have %q: %v, want %q", c.others, err, c.says)
		}
	}
	lost := errors.New("the run has failed")
	if err := alike(t.Context(), answers{err: lost}, "5e1f"); !errors.Is(err, lost) {
		t.Errorf("an exchange that fails: %v", err)
	}
}
