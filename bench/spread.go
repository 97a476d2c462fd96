package bench

import "slices"

// Spread is what several measurements of one thing gave.
type Spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`  // the least
	High   float64 `json:"high"` // the greatest
	Count  int     `json:"count"`
}

// SpreadOf returns the spread of xs; of none it is zero. Of an even number the
// median is the mean of the middle two, which gonum/stat's quantiles are not.
func SpreadOf(xs []float64) Spread {
	n := len(xs)
	if n == 0 {
		return Spread{}
	}
	s := slices.Sorted(slices.Values(xs))
	return Spread{Median: (s[(n-1)/2] + s[n/2]) / 2, Low: s[0], High: s[n-1], Count: n}
}
