// Package report shows what comparisons gave: as tables and charts, and as the
// figures that have changed between two sets of results.
//
// It knows the results that bench/scenario writes, how a table is written and a
// chart is drawn, and when a difference is more than chance. It must not know
// how anything is measured, nor judge what the results have judged already: a
// verdict is shown as it was recorded. The same results give the same bytes.
package report
