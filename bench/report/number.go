package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/gofsdp/gofsdp/bench"
)

// number writes three significant digits, all that are before the point, and no
// exponent: 0.0123, 1.60, 203, 15342.
func number(x float64) string {
	if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	// The exponent of the rounded number: that of 9.999 is 1.
	_, exponent, _ := strings.Cut(strconv.FormatFloat(x, 'e', 2, 64), "e")
	tens, _ := strconv.Atoi(exponent)
	return strconv.FormatFloat(x, 'f', max(0, 2-tens), 64)
}

// scaled writes a spread in another unit: 2.31 (2.28–2.40); of one value, that.
func scaled(s bench.Spread, unit float64) string {
	switch s.Count {
	case 0:
		return none
	case 1:
		return number(s.Median * unit)
	}
	return fmt.Sprintf("%s (%s–%s)", number(s.Median*unit), number(s.Low*unit), number(s.High*unit))
}

// none stands where there is no value.
const none = "–"

// median returns the middle of xs.
func median(xs []float64) float64 { return bench.SpreadOf(xs).Median }
