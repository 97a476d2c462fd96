package train

import (
	"cmp"
	"math"
	"slices"

	"github.com/gofsdp/gofsdp/device"
)

// chooser draws tokens from logits. Draw i of a seed is always the same.
type chooser struct {
	temperature, topP float64
	seed, draws       uint64

	ids   []int32   // of tokens that may be drawn, likeliest first
	probs []float64 // of the vocabulary
}

// choose returns a token; the greatest logit must be finite. Temperature 0 takes the likeliest, the lowest of
// equals; otherwise softmax(logits/temperature) is cut to the likeliest tokens
// that together reach topP (Holtzman et al., arXiv 1904.09751).
func (c *chooser) choose(logits []float32) int32 {
	best := slices.Max(logits)
	if c.temperature == 0 {
		return int32(slices.Index(logits, best))
	}
	if len(c.probs) != len(logits) {
		c.ids, c.probs = make([]int32, 0, len(logits)), make([]float64, len(logits))
	}
	var sum float64
	for i, l := range logits {
		c.probs[i] = math.Exp(float64(l-best) / c.temperature)
		sum += c.probs[i]
	}
	// Tokens below this have less than 1−topP together, so that the others reach
	// topP without them; most of a large vocabulary need not be sorted.
	least := (1 - c.topP) * sum / float64(2*len(logits))
	c.ids = c.ids[:0]
	for i, p := range c.probs {
		if p >= least {
			c.ids = append(c.ids, int32(i))
		}
	}
	slices.SortFunc(c.ids, func(a, b int32) int {
		return cmp.Or(cmp.Compare(c.probs[b], c.probs[a]), cmp.Compare(a, b))
	})
	kept, mass := 0, 0.0
	for kept < len(c.ids) && (kept == 0 || mass < c.topP*sum) {
		mass += c.probs[c.ids[kept]]
		kept++
	}
	c.draws++
	u := float64(device.Random(c.seed, 0, c.draws)>>11) / (1 << 53) * mass
	for _, id := range c.ids[:kept] {
		if u -= c.probs[id]; u < 0 {
			return id
		}
	}
	return c.ids[kept-1]
}
