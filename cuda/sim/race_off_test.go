//go:build sim && cgo && linux && !race

package sim_test

// raceDetector tells that Go's race detector watches.
const raceDetector = false
