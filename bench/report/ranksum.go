package report

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// exactly is the most values of two samples whose p value is counted out; above
// it the normal distribution is as good.
const exactly = 60

// rankSum is the two-sided p value of the Mann–Whitney test: of all ways to
// divide the values of both samples between them, the part in which the sum of
// a's ranks is at least as far from its mean. Equal values share their ranks'
// mean, and the count is exact with them, too. Neither sample is empty.
// Mann, Whitney: On a test of whether one of two random variables is
// stochastically larger than the other, Annals of Mathematical Statistics 18, 1947.
func rankSum(a, b []float64) float64 {
	ranks := doubledRanks(a, b)
	sum, total := 0, 0
	for i, r := range ranks {
		total += r
		if i < len(a) {
			sum += r
		}
	}
	// The mean of the sum is n·total/(n+m); times n+m all is whole.
	n, all := len(a), len(ranks)
	far := func(sum int) int { return max(sum*all-n*total, n*total-sum*all) }
	if all > exactly {
		return normalRankSum(ranks, n, float64(far(sum))/float64(all))
	}
	// ways[k][s] is how many choices of k values have ranks that sum to s.
	ways := make([][]float64, n+1)
	for k := range ways {
		ways[k] = make([]float64, total+1)
	}
	ways[0][0] = 1
	most := 0 // the sum of all ranks so far
	for i, r := range ranks {
		most += r
		for k := min(n, i+1); k > 0; k-- {
			for s := most; s >= r; s-- {
				ways[k][s] += ways[k-1][s-r]
			}
		}
	}
	as, every := 0.0, 0.0
	for s, w := range ways[n] {
		every += w
		if far(s) >= far(sum) {
			as += w
		}
	}
	return as / every
}

// normalRankSum is rankSum by the normal distribution, from how far the sum of
// doubled ranks is from its mean, with the variance that ties leave.
func normalRankSum(ranks []int, n int, far float64) float64 {
	all := float64(len(ranks))
	squares, mean := 0.0, all+1 // of doubled ranks
	for _, r := range ranks {
		squares += (float64(r) - mean) * (float64(r) - mean)
	}
	variance := float64(n) * (all - float64(n)) / (all * (all - 1)) * squares
	if variance == 0 { // all are equal
		return 1
	}
	// The sum goes in steps of 2, or of 1 with ties: half of the smaller one.
	far = max(0, far-0.5)
	return min(1, 2*distuv.UnitNormal.Survival(far/math.Sqrt(variance)))
}

// doubledRanks returns twice the rank of each value, a's first, which is whole
// where several share a rank.
func doubledRanks(a, b []float64) []int {
	values := slices.Concat(a, b)
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(values[i], values[j]) })
	ranks := make([]int, len(values))
	for i := 0; i < len(order); {
		j := i
		for j < len(order) && values[order[j]] == values[order[i]] {
			j++
		}
		for _, k := range order[i:j] {
			ranks[k] = i + 1 + j // twice the mean of i+1 … j
		}
		i = j
	}
	return ranks
}

// leastP is the least p value that samples of n and m can give: of all ways to
// divide them, the two in which one lies wholly above the other.
func leastP(n, m int) float64 {
	if n == 0 || m == 0 {
		return 1
	}
	return min(1, 2/math.Round(choose(n+m, n)))
}

func choose(n, k int) float64 {
	ways := 1.0
	for i := 1; i <= k; i++ {
		ways = ways * float64(n-k+i) / float64(i)
	}
	return ways
}

// adjusted returns p values that hold for many comparisons: of what is called
// different at a level, no greater part is chance, on average (Benjamini,
// Hochberg: Controlling the false discovery rate, JRSS B 57, 1995). Where
// nothing has changed, the level also bounds the chance of any false alarm.
func adjusted(ps []float64) []float64 {
	order := make([]int, len(ps))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(ps[j], ps[i]) })
	out := make([]float64, len(ps))
	least := 1.0
	for i, k := range order { // the greatest first
		rank := len(ps) - i
		least = min(least, ps[k]*float64(len(ps))/float64(rank))
		out[k] = least
	}
	return out
}
