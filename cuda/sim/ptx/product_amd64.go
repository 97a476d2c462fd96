package ptx

// product is productGo, four elements at a time, with the same roundings: half
// of the time that attention takes was spent in it.
//
//go:noescape
func product(x *fragments, k int)
