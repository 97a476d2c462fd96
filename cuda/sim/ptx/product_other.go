//go:build !amd64

package ptx

func product(c *[16][8]float32, a *[16][16]float32, b *[16][8]float32, k int) { productGo(c, a, b, k) }
