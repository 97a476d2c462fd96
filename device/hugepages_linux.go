package device

import "golang.org/x/sys/unix"

// adviseHugePages asks for fewer, larger pages; a kernel without them says no,
// which changes nothing but speed.
func adviseHugePages(b []byte) { _ = unix.Madvise(b, unix.MADV_HUGEPAGE) }
