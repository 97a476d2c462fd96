//go:build sim && cgo && linux && race

package sim_test

// raceDetector tells that Go's race detector watches, which takes a missing wait for the mistake it is.
const raceDetector = true
