package ptx

// product is productGo, four elements at a time, with the same roundings: half
// of the time that attention takes here is spent in it.
//
//go:noescape
func product(c *[16][8]float32, a *[16][16]float32, b *[16][8]float32, k int)
