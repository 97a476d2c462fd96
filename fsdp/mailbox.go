package fsdp

import "github.com/gofsdp/gofsdp/device"

// Host and device exchange numbers through the mailbox, a buffer of the host's
// memory that both see at one address: a device's own memory may be hidden from
// the host. What operations read of a batch, and what they have to say, lies in
// buffers of the device; a program begins with copies of what the host has put
// into the mailbox for it, and ends with copies of its results. These are steps
// like all others.

// field is a part of a buffer that has a name of its own.
type field struct {
	name string
	typ  device.DType
	n    int
	at   device.Tensor // where it lies
}

// letter is a buffer of the device that has a place in the mailbox.
type letter struct {
	buf device.Buf
	off int64 // from the mailbox's start
}

// stagingLen is how many numbers pass at once between host and device besides
// those of programs: enough that starting a copy costs little beside it.
const stagingLen = 1 << 20

// exchange adds a buffer of fields side by side, so that one copy moves them all,
// with a place in the mailbox. It returns where the fields lie.
func (p *Plan) exchange(name string, kind Kind, fields ...field) []device.Tensor {
	var bytes int64
	for i := range fields {
		f := &fields[i]
		f.at = device.Tensor{Off: align(bytes), Type: f.typ, Len: int64(f.n)}
		bytes = f.at.Off + f.at.Bytes()
	}
	buf := p.buffer(name, kind, bytes)
	b := &p.Buffers[buf-1]
	b.Lasts, b.fields = true, fields
	list := make([]device.Tensor, len(fields))
	for i := range fields {
		fields[i].at.Buf = buf
		list[i] = fields[i].at
	}
	p.letters = append(p.letters, letter{buf, p.mailed})
	p.mailed += align(bytes)
	return list
}

// pinned adds what the host sees: the mailbox, once all that has a place in it is
// known, and before it the staging memory, as much as the largest unit within limits.
func (p *Plan) pinned() {
	n := 0
	for _, u := range p.Units {
		n = max(n, u.Len)
	}
	p.staging = p.keep("staging", Mailbox, device.F32, min(n, stagingLen))
	p.mailbox = p.keep("mailbox", Mailbox, device.I32, int(p.mailed/device.I32.Size())).Buf
	for _, b := range []device.Buf{p.staging.Buf, p.mailbox} {
		p.Buffers[b-1].In = device.Pinned
	}
}

// mail returns the place in the mailbox of what was made by exchange.
func (p *Plan) mail(t device.Tensor) device.Tensor {
	for _, l := range p.letters {
		if l.buf == t.Buf {
			t.Buf, t.Off = p.mailbox, l.off+t.Off
			return t
		}
	}
	panic("fsdp: " + p.Buffers[t.Buf-1].Name + " has no place in the mailbox")
}

// unmail returns what has its place in the mailbox where t lies.
func (p *Plan) unmail(t device.Tensor) device.Tensor {
	i := len(p.letters) - 1
	for p.letters[i].off > t.Off {
		i--
	}
	t.Buf, t.Off = p.letters[i].buf, t.Off-p.letters[i].off
	return t
}

// letterOf returns all of the buffer that t lies in, as numbers that nothing is
// known of: what lies between its fields is copied along.
func (p *Plan) letterOf(t device.Tensor) device.Tensor {
	return device.Tensor{Buf: t.Buf, Type: device.I32, Len: p.Buffers[t.Buf-1].Bytes / device.I32.Size()}
}

// upload emits the copy of t from the mailbox.
func (b *builder) upload(t device.Tensor) {
	b.Emit("upload", &device.Copy{Src: b.plan.mail(t), Dst: t, N: int(t.Len)})
}

// download emits the copy of t to the mailbox.
func (b *builder) download(t device.Tensor) {
	b.Emit("download", &device.Copy{Src: t, Dst: b.plan.mail(t), N: int(t.Len)})
}

// fieldOf names t by the field that it lies in, or else by its buffer.
func (b Buffer) fieldOf(t device.Tensor) string {
	for _, f := range b.fields {
		if f.at.Off <= t.Off && t.Off+t.Bytes() <= f.at.Off+f.at.Bytes() {
			return f.name
		}
	}
	return b.Name
}
