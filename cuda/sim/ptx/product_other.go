//go:build !amd64

package ptx

func product(x *fragments, k int) { productGo(x, k) }
