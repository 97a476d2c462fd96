//go:build !race

package launcher

// slowness is 1 where nothing watches.
const slowness = 1
