package bench

import "testing"

func TestResidentMemoryIsThatOfTheTimeThatIsFollowed(t *testing.T) {
	take := func() {
		b := make([]byte, 64<<20)
		for i := range b {
			b[i] = 1
		}
		taken = b
	}
	var before, during resident
	before.begin()
	if !before.known {
		t.Skip("this process may not write /proc/self/clear_refs")
	}
	if err := before.end(); err != nil {
		t.Fatal(err)
	}
	during.begin()
	take()
	if err := during.end(); err != nil {
		t.Fatal(err)
	}
	if more := during.peak - before.peak; before.peak < 1<<20 || more < 32<<20 {
		t.Errorf("%d bytes, and %d more once 64 MiB are taken", before.peak, more)
	}
	taken = nil
}

var taken []byte // kept from the compiler
