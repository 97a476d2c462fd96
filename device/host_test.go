package device

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testDevice returns a reference device that the test's end closes.
func testDevice(t *testing.T) Device {
	t.Helper()
	d := NewReference()
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func testTensor(t *testing.T, d Device, typ DType, n int64) Tensor {
	t.Helper()
	b, err := d.Alloc(n*typ.Size(), Local)
	if err != nil {
		t.Fatal(err)
	}
	return b.In(typ, 0, n)
}

func TestMemoryIsZeroedAlignedAndFreedOnce(t *testing.T) {
	d := testDevice(t)
	b, err := d.Alloc(3<<20+5, Local)
	if err != nil {
		t.Fatal(err)
	}
	if b.Addr%256 != 0 || len(b.Host) != 3<<20+5 || addrOf(b.Host) != b.Addr {
		t.Fatalf("address %#x, %d bytes for the host", b.Addr, len(b.Host))
	}
	for i, x := range b.Host {
		if x != 0 {
			t.Fatalf("byte %d is %d", i, x)
		}
	}
	b.In(F32, 4, 1).F32()[0] = 1
	if b.Host[6] != 0x80 || b.Host[7] != 0x3f {
		t.Fatal("the host sees other memory")
	}
	if err := d.Free(b); err != nil {
		t.Fatal(err)
	}
	if err := d.Free(b); err == nil || !strings.Contains(err.Error(), "no buffer at address") {
		t.Fatalf("freed twice: %v", err)
	}
	if _, err := d.Alloc(0, Local); err == nil {
		t.Fatal("a buffer of 0 bytes")
	}
}

// funcOp is an operation of the test's own.
type funcOp struct{ f func() }

func (o *funcOp) Check() error { return nil }
func (o *funcOp) Cost() Cost   { return Cost{} }
func (o *funcOp) Reference()   { o.f() }

func TestAStreamRunsInOrderAndAnEventHoldsBackAnother(t *testing.T) {
	d := testDevice(t)
	a, b, e := d.NewStream("a"), d.NewStream("b"), d.NewEvent()
	if !e.Done() {
		t.Fatal("a new event is not done")
	}
	b.Wait(e) // never recorded: holds nothing back
	if err := b.Sync(); err != nil {
		t.Fatal(err)
	}
	var order []string
	gate := make(chan struct{})
	a.Launch(&funcOp{func() { <-gate; order = append(order, "a1") }})
	a.Launch(&funcOp{func() { order = append(order, "a2") }})
	a.Record(e)
	b.Wait(e)
	b.Launch(&funcOp{func() { order = append(order, "b") }})
	if e.Done() {
		t.Fatal("done before its operations")
	}
	close(gate)
	if err := errors.Join(b.Sync(), a.Sync()); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(order, " "); got != "a1 a2 b" || !e.Done() {
		t.Fatalf("%s, done %v", got, e.Done())
	}
}

func TestAWaitMeansTheRecordBeforeItAndNoLaterOne(t *testing.T) {
	d := testDevice(t)
	a, b, e := d.NewStream("a"), d.NewStream("b"), d.NewEvent()
	gate := make(chan struct{})
	a.Record(e)
	b.Wait(e)
	a.Launch(&funcOp{func() { <-gate }})
	a.Record(e)
	if err := b.Sync(); err != nil { // would hang
		t.Fatal(err)
	}
	if e.Done() {
		t.Fatal("the second record has not fired yet")
	}
	close(gate)
	if err := a.Sync(); err != nil || !e.Done() {
		t.Fatal(err, e.Done())
	}
}

func TestAFailedStreamSkipsUntilSyncButStillRecords(t *testing.T) {
	d := testDevice(t)
	a, b, e := d.NewStream("a"), d.NewStream("b"), d.NewEvent()
	ran := false
	a.Launch(&funcOp{func() { panic("first") }})
	a.Launch(&funcOp{func() { ran = true }})
	a.Record(e)
	b.Wait(e)
	if err := b.Sync(); err != nil {
		t.Fatal(err)
	}
	err := a.Sync()
	if err == nil || !strings.HasPrefix(err.Error(), "stream a: funcOp: first\n") || ran {
		t.Fatalf("%v; ran %v", err, ran)
	}
	a.Launch(&funcOp{func() { ran = true }})
	if err := a.Sync(); err != nil || !ran {
		t.Fatalf("after Sync: %v; ran %v", err, ran)
	}
}

func TestAnIdOutOfRangeIsNamed(t *testing.T) {
	d := testDevice(t)
	op := &Embed{
		Table: testTensor(t, d, F32, 6), IDs: testTensor(t, d, I32, 2), Out: testTensor(t, d, F32, 4),
		Rows: 2, Dim: 2, Vocab: 3,
	}
	op.IDs.I32()[1] = 3
	s := d.NewStream("compute")
	s.Launch(op)
	err := s.Sync()
	var index *IndexError
	if !errors.As(err, &index) || err.Error() != "stream compute: Embed: IDs[1] is 3, want 0 to 2" {
		t.Fatal(err)
	}
}

func TestAStreamWithoutExecutorSaysWhyAtEverySync(t *testing.T) {
	d := NewHost(Info{}, func(string) (Executor, error) { return nil, errors.New("no threads") })
	defer d.Close()
	s := d.NewStream("compute")
	for range 2 {
		s.Launch(&funcOp{func() { t.Error("ran") }})
		if err := s.Sync(); err == nil || err.Error() != "stream compute: no threads" {
			t.Fatal(err)
		}
	}
}

func TestLaunchingRecordingAndWaitingAllocateNothing(t *testing.T) {
	d := testDevice(t)
	s, e := d.NewStream("a"), d.NewEvent()
	op := &funcOp{func() {}}
	n := testing.AllocsPerRun(2*QueueLen, func() {
		s.Launch(op)
		s.Record(e)
		s.Wait(e)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func TestSyncAfterCloseIsAnErrorOfEveryDevice(t *testing.T) {
	for name, d := range map[string]Device{
		"reference": NewReference(), "delayer": NewDelayer(NewReference(), 1, time.Microsecond), "NaN finder": NewNaNFinder(NewReference(), nil),
	} {
		s := d.NewStream("a")
		if err := errors.Join(s.Sync(), d.Close()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := s.Sync(); err == nil || err.Error() != "stream a: its device is closed" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCloseRunsWhatIsQueuedAndIsHarmlessTwice(t *testing.T) {
	d := NewReference()
	if _, err := d.Alloc(1, Local); err != nil {
		t.Fatal(err)
	}
	ran := false
	d.NewStream("a").Launch(&funcOp{func() { time.Sleep(time.Millisecond); ran = true }})
	if err := errors.Join(d.Close(), d.Close()); err != nil || !ran {
		t.Fatal(err, ran)
	}
}
