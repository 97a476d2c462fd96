// Package calls calls a driver and cuBLAS through the C pointers of their tables,
// one method a function, and counts which of them have been called and what they
// answered. It is what tests of a table use, since tests cannot contain C; it
// knows nothing of who filled the table. Build tag sim, with cgo, on Linux.
package calls
