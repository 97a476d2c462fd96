package launcher

import pb "github.com/gofsdp/gofsdp/launcher/gofsdpv1"

// exchange is one that not all ranks have given to.
type exchange struct {
	values [][]byte
	given  []bool
	count  int
}

// give adds a rank's value to an exchange, and tells all when it is complete.
func (g *gang) give(rank int, give *pb.Give) {
	x := g.exchanges[give.Key]
	if x == nil {
		x = &exchange{values: make([][]byte, len(g.ranks)), given: make([]bool, len(g.ranks))}
		g.exchanges[give.Key] = x
	}
	if x.given[rank] {
		g.fail(reason, rank, exitFailure, "rank %d gave %q twice in one exchange", rank, give.Key)
		return
	}
	x.values[rank], x.given[rank] = give.Value, true
	if x.count++; x.count < len(g.ranks) {
		g.checkExchanges()
		return
	}
	delete(g.exchanges, give.Key)
	g.tellAll(&pb.ToAgent{Kind: &pb.ToAgent_Gathered{Gathered: &pb.Gathered{Key: give.Key, Values: x.values}}})
}

// checkExchanges ends a run in which somebody waits for a rank that has left.
func (g *gang) checkExchanges() {
	for key, x := range g.exchanges {
		for r, s := range g.ranks {
			// One that failed has, or will have, a reason of its own.
			switch {
			case x.given[r] || s.done == nil || s.done.Code != 0 && g.stop == nil:
			case g.stop != nil: // it left as it was asked to
				g.fail(suspicion, g.stop.Rank, g.stop.Code, "%s", g.stop.Reason)
			default:
				g.fail(suspicion, r, exitFailure, "rank %d left while others exchange %q", r, key)
			}
		}
	}
}
