package launcher

import "fmt"

// failure is a reason to end the run.
type failure struct {
	Outcome
	weight int
}

// How much a failure explains: more replaces less, and the first of its weight stays.
const (
	consequence = iota // it ended because of another
	suspicion          // it lost a peer or waited for one in vain, and another may say why
	reason
)

// weightOf says how much a rank's exit code explains.
func weightOf(code int) int {
	switch code {
	case exitStopped:
		return consequence
	case exitLost, exitHung:
		return suspicion
	}
	return reason
}

// outcome is how the run ends, as far as is known by now.
func (g *gang) outcome() Outcome {
	switch {
	case g.cause != nil && g.cause.weight > consequence:
		return g.cause.Outcome
	case g.stop != nil && !g.succeeded():
		return *g.stop
	case g.cause != nil:
		return Outcome{Code: exitLost, Reason: "nobody said why: " + g.cause.Reason, Rank: g.cause.Rank}
	}
	return Outcome{Rank: -1}
}

// succeeded says whether all ranks have ended well: then it is too late to stop.
func (g *gang) succeeded() bool {
	for _, r := range g.ranks {
		if r.done == nil || r.done.Code != 0 {
			return false
		}
	}
	return true
}

// fail notes a failure, and keeps the better reason.
func (g *gang) fail(weight, rank, code int, format string, args ...any) {
	if g.cause == nil || weight > g.cause.weight {
		g.cause = &failure{Outcome{Code: code, Reason: fmt.Sprintf(format, args...), Rank: rank}, weight}
	}
}
