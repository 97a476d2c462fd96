package main

import (
	"bytes"
	"context"
	"fmt"
)

// alike refuses ranks that have read other texts: each would train on packs of
// its own, and nothing else would show it. All ranks call it, and all that do
// get the same answer.
func alike(ctx context.Context, x exchanger, fingerprint string) error {
	all, err := x.Exchange(ctx, "data", []byte(fingerprint))
	if err != nil {
		return err
	}
	for rank, theirs := range all {
		if !bytes.Equal(theirs, all[0]) {
			return asUser(fmt.Errorf("data.path: rank %d has read another text than rank 0 (fingerprints %.12s and %.12s): all machines need the same files, and nothing may write to them while ranks start", rank, theirs, all[0]))
		}
	}
	return nil
}
