package train

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/device"
)

// A GPU's plan counts against its own memory, and what is pinned against the host's.
func TestAPlanFitsADeviceWithMemoryOfItsOwnOrIsRefusedByWhatItLacks(t *testing.T) {
	w := work(t)
	src, _, _, err := OpenModel(w.Model, "fresh")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := w.Train.NewPlan(src.Config, w.Data.SequenceLength)
	if err != nil {
		t.Fatal(err)
	}
	pinned := plan.Arenas[device.Pinned].Bytes
	own := plan.Bytes() - pinned
	if pinned == 0 || own == 0 {
		t.Fatalf("the plan has %d bytes pinned of %d", pinned, plan.Bytes())
	}
	can := func(device.Op) error { return nil }
	for name, c := range map[string]struct {
		memory int64 // of the device
		apart  Apart
		wants  string // in the error; "" where it fits
	}{
		"exactly":                       {own + 100, Apart{Besides: 100, Process: 50, Host: 2 * (pinned + 50), Ranks: 2, Lacks: can}, ""},
		"memories that are not known":   {0, Apart{Besides: 1 << 50, Process: 1 << 50, Ranks: 8, Lacks: can}, ""},
		"a byte of the device's":        {own + 99, Apart{Besides: 100, Lacks: can}, "of its GPU's memory, 100 B of them besides its plan, and a GPU has"},
		"a byte of the host's":          {own, Apart{Process: 50, Host: 2*(pinned+50) - 1, Ranks: 2, Lacks: can}, "2 ranks of this machine need"},
		"a byte of the host's, for one": {own, Apart{Host: pinned - 1, Lacks: can}, "1 rank of this machine needs"},
		"an operation": {own, Apart{Lacks: func(op device.Op) error {
			if _, ok := op.(*device.AttentionBackward); ok {
				return errors.New("no kernel for it")
			}
			return nil
		}}, "no kernel for it"},
	} {
		place := Place{Apart: &c.apart}
		err := place.fit(plan, device.Info{Name: "a GPU", Memory: c.memory})
		if (err == nil) != (c.wants == "") || err != nil && !strings.Contains(err.Error(), c.wants) {
			t.Errorf("%s: %v, want %q", name, err, c.wants)
		}
		if err != nil {
			if _, again := Check(context.Background(), w, place, device.Info{Name: "a GPU", Memory: c.memory}, nil); again == nil || again.Error() != err.Error() {
				t.Errorf("%s: of the run: %v, want %v", name, again, err)
			}
		}
	}
}
