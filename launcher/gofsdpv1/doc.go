// Package gofsdpv1 is the control plane's messages and service, generated from
// control.proto. It knows what is said, and not who says it when.
package gofsdpv1

// The generated files are committed. Whoever changes control.proto runs go
// generate, with protoc 3.21 (Debian: protobuf-compiler), protoc-gen-go v1.36.12
// and protoc-gen-go-grpc v1.6.1 on the path.

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative control.proto
