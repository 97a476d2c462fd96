package data

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
)

// heldOutOf splits texts and tells for each whether it is held out.
func heldOutOf(t *testing.T, holdout float64, seed uint64, texts ...string) (map[string]bool, error) {
	t.Helper()
	docs := documentsOf(t, 0, texts...)
	err := split(docs, holdout, seed)
	held := map[string]bool{}
	for i := range docs {
		if was, ok := held[texts[i]]; ok && was != docs[i].heldOut {
			t.Errorf("copies of %q are on both sides", texts[i])
		}
		held[texts[i]] = docs[i].heldOut
	}
	return held, err
}

func TestADocumentKeepsItsSideWhenOthersComeAndGo(t *testing.T) {
	var texts []string
	for i := range 200 {
		texts = append(texts, fmt.Sprint("document ", i))
	}
	few, err := heldOutOf(t, 0.1, 5, append(texts[:50], texts[:20]...)...)
	must(t, err)
	texts = nil
	for i := range 200 {
		texts = append([]string{fmt.Sprint("document ", i)}, texts...)
	}
	all, err := heldOutOf(t, 0.1, 5, texts...)
	must(t, err)
	held := 0
	for text := range all {
		if side, ok := few[text]; ok && side != all[text] {
			t.Errorf("%s changed sides", text)
		}
		if all[text] {
			held++
		}
	}
	// Five standard deviations of a binomial of 200 draws at 0.1.
	if held < 1 || held > 20+21 {
		t.Errorf("%d of 200 documents are held out at 0.1", held)
	}
	more, err := heldOutOf(t, 0.5, 5, texts...)
	must(t, err)
	for text := range all {
		if all[text] && !more[text] {
			t.Errorf("%s is held out at 0.1, but not at 0.5", text)
		}
	}
	other, err := heldOutOf(t, 0.5, 6, texts...)
	must(t, err)
	if fmt.Sprint(other) == fmt.Sprint(more) {
		t.Error("two seeds hold out the same documents")
	}
}

func TestASplitWithAnEmptySideSaysHowToMendIt(t *testing.T) {
	_, err := heldOutOf(t, 0.5, 0, "alone")
	wantError(t, err, "data.path: one document", "split it into several files")
	_, err = heldOutOf(t, 1e-9, 0, "a", "b", "c")
	wantError(t, err, "data.holdout: none of 3 documents")
	found := regexp.MustCompile(`set data.holdout above ([0-9.e-]+),`).FindStringSubmatch(err.Error())
	if found == nil {
		t.Fatalf("no remedy in %v", err)
	}
	share, _ := strconv.ParseFloat(found[1], 64)
	_, err = heldOutOf(t, share*1.001, 0, "a", "b", "c")
	must(t, err)
	_, err = heldOutOf(t, 1-1e-9, 0, "a", "b", "c")
	wantError(t, err, "data.holdout: all 3 documents", "lower data.holdout")
}
