// Package rules holds the rules of the code base that the compiler does not: what may import what,
// and why; that every package says what it is; that no file grows out of hand. Its tests read the
// source of the module as text, under every build tag. It knows no other package.
package rules
