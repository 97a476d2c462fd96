package launcher

import (
	"fmt"
	"io"
	"sync"
)

// printer writes the ranks' lines: rank 0's as they are, as it speaks for the
// run, and the others' behind their number. It has a goroutine of its own, so
// that a terminal that is held up stops nobody from beating.
type printer struct {
	out, err io.Writer
	lines    chan printedLine
	done     sync.WaitGroup
}

type printedLine struct {
	rank  int
	error bool
	text  []byte
}

func newPrinter(out, err io.Writer) *printer {
	p := &printer{out: out, err: err, lines: make(chan printedLine, 256)}
	p.done.Go(func() {
		for l := range p.lines {
			to := p.out
			if l.error {
				to = p.err
			}
			prefix := ""
			if l.rank != 0 {
				prefix = fmt.Sprintf("[rank %d] ", l.rank)
			}
			// What cannot be printed is still in the rank's log.
			fmt.Fprintf(to, "%s%s\n", prefix, l.text)
		}
	})
	return p
}

// close returns when all lines are written. No line may come after it.
func (p *printer) close() {
	close(p.lines)
	p.done.Wait()
}
