package device

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// diary is an Observer that writes down what it is told.
type diary struct{ said []string }

func (d *diary) Begin() { d.said = append(d.said, "begin") }
func (d *diary) Skip()  { d.said = append(d.said, "skip") }
func (d *diary) End(err error) {
	if err != nil {
		d.said = append(d.said, "failed")
		return
	}
	d.said = append(d.said, "end")
}

func TestAnObserverIsToldOfEachOperationInOrder(t *testing.T) {
	for name, d := range map[string]Device{
		"reference": NewReference(), "delayer": NewDelayer(NewReference(), 1, time.Microsecond), "NaN finder": NewNaNFinder(NewReference(), nil),
	} {
		s, e, seen := d.NewStream("a"), d.NewEvent(), &diary{}
		s.Launch(&funcOp{func() {}}) // before it is observed
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		s.(Observable).Observe(seen)
		s.Launch(&funcOp{func() {
			if !slices.Equal(seen.said, []string{"begin"}) {
				t.Errorf("%s: told of %v while the first runs", name, seen.said)
			}
		}})
		s.Record(e)
		s.Wait(e)
		s.Launch(&funcOp{func() { panic(errors.New("spoilt")) }})
		s.Launch(&funcOp{func() { t.Errorf("%s: the third ran", name) }})
		if err := s.Sync(); err == nil {
			t.Fatalf("%s: no error", name)
		}
		s.Launch(&funcOp{func() {}})
		if err := errors.Join(s.Sync(), d.Close()); err != nil {
			t.Fatal(err)
		}
		if want := []string{"begin", "end", "begin", "failed", "skip", "begin", "end"}; !slices.Equal(seen.said, want) {
			t.Errorf("%s: told of %v, want %v", name, seen.said, want)
		}
	}
}
