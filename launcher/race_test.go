//go:build race

package launcher

// slowness is by how much the race detector slows processes down that do
// little but start.
const slowness = 2
