package device

// Observer follows a stream for a flight recorder. The stream's goroutine calls
// it for each launched operation, in their order: Begin and then End around one
// that runs, Skip for one that does not because an earlier one failed. The calls
// hold the stream up, so they must be short.
type Observer interface {
	Begin()
	End(err error)
	Skip()
}

// Observable is a Stream that an Observer can follow: those of a host are.
type Observable interface {
	Stream
	// Observe makes o follow what is launched from now on. Nothing may be queued.
	Observe(o Observer)
}

// Observe implements Observable.
func (s *hostStream) Observe(o Observer) { s.observer = o }

// perform executes an operation in the sight of the stream's observer, unless an
// earlier one failed.
func (s *hostStream) perform(op Op) {
	switch {
	case s.err != nil && s.observer != nil:
		s.observer.Skip()
	case s.err != nil:
	case s.observer == nil:
		s.err = s.execute(op)
	default:
		s.observer.Begin()
		s.err = s.execute(op)
		s.observer.End(s.err)
	}
}
