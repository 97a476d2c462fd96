package tokenizer

import (
	"math"
	"math/bits"
)

// A pair is two neighbouring ids, the left one in the upper half.
type pair uint64

func pairOf(left, right int32) pair { return pair(uint32(left))<<32 | pair(uint32(right)) }

func (p pair) left() int32  { return int32(p >> 32) }
func (p pair) right() int32 { return int32(p & math.MaxUint32) }

// A merge is the rank of a merge rule in the upper half and the id that the
// pair becomes in the lower half, so that the least merge goes first.
type merge uint64

func mergeOf(rank int, id int32) merge { return merge(rank)<<32 | merge(uint32(id)) }

func (m merge) id() int32 { return int32(m & math.MaxUint32) }

// noMerge is above every merge.
const noMerge merge = math.MaxUint64

// A mergeTable finds the merge of a pair: an open hash table, read-only once
// built, at most two thirds full.
type mergeTable struct {
	slots []mergeSlot
	shift uint
	count int
}

type mergeSlot struct {
	pair  pair
	merge merge // noMerge marks a free slot
}

func newMergeTable(capacity int) mergeTable {
	logSize := uint(max(4, bits.Len(uint(capacity+capacity/2))))
	t := mergeTable{slots: make([]mergeSlot, 1<<logSize), shift: 64 - logSize}
	for i := range t.slots {
		t.slots[i].merge = noMerge
	}
	return t
}

// slot returns the slot of the pair, or the free one where it belongs.
// The multiplier is 2^64 divided by the golden ratio (Knuth, volume 3, 6.4).
func (t *mergeTable) slot(p pair) *mergeSlot {
	for i := uint64(p) * 0x9E3779B97F4A7C15 >> t.shift; ; i++ {
		s := &t.slots[i&uint64(len(t.slots)-1)]
		if s.pair == p || s.merge == noMerge {
			return s
		}
	}
}

// add reports false and changes nothing when the pair has a merge already. No
// more pairs may be added than the capacity.
func (t *mergeTable) add(p pair, m merge) bool {
	s := t.slot(p)
	if s.merge != noMerge {
		return false
	}
	*s = mergeSlot{p, m}
	t.count++
	return true
}

// find returns noMerge for a pair without a merge.
func (t *mergeTable) find(left, right int32) merge { return t.slot(pairOf(left, right)).merge }

// ranked lists the slots in use by rank.
func (t *mergeTable) ranked() []mergeSlot {
	out := make([]mergeSlot, t.count)
	for _, s := range t.slots {
		if s.merge != noMerge {
			out[s.merge>>32] = s
		}
	}
	return out
}

// A merger applies merges to one word at a time. It holds scratch memory only.
type merger struct {
	ids    []int32
	merges []merge // merges[i] is that of ids[i] and its right neighbour
	next   []int32 // for long words: the index of the right neighbour
	prev   []int32
	queue  heap[merge] // for long words: rank and index of the left id
}

// longWord is the number of bytes from which a heap beats scanning for the
// least merge.
const longWord = 128

// apply merges m.ids, one id per byte at first, until no rule is left: the
// lowest rank first, and the leftmost place of it. It returns the merged ids,
// which are valid until the next use of m.
func (m *merger) apply(table *mergeTable) []int32 {
	if len(m.ids) < longWord {
		return m.scan(table)
	}
	return m.long(table)
}

// scan looks through all pairs of the word for each merge.
func (m *merger) scan(table *mergeTable) []int32 {
	ids := m.ids
	merges := m.merges[:0]
	for i := 1; i < len(ids); i++ {
		merges = append(merges, table.find(ids[i-1], ids[i]))
	}
	m.merges = merges
	for {
		at, least := 0, noMerge
		for i, x := range merges {
			if x < least {
				at, least = i, x
			}
		}
		if least == noMerge {
			return ids
		}
		ids[at] = least.id()
		ids = append(ids[:at+1], ids[at+2:]...)
		merges = append(merges[:at], merges[at+1:]...)
		if at > 0 {
			merges[at-1] = table.find(ids[at-1], ids[at])
		}
		if at < len(merges) {
			merges[at] = table.find(ids[at], ids[at+1])
		}
	}
}

// long does the same with a linked list and a heap, in time n log n.
func (m *merger) long(table *mergeTable) []int32 {
	n := len(m.ids)
	m.merges, m.next, m.prev = m.merges[:0], m.next[:0], m.prev[:0]
	m.queue.items = m.queue.items[:0]
	m.queue.less = func(a, b merge) bool { return a < b }
	// look up the merge of the pair at i anew and queue it.
	look := func(i int32) {
		m.merges[i] = noMerge
		if j := m.next[i]; j < int32(n) {
			if x := table.find(m.ids[i], m.ids[j]); x != noMerge {
				m.merges[i] = x
				m.queue.push(x>>32<<32 | merge(i))
			}
		}
	}
	for i := range int32(n) {
		m.merges = append(m.merges, noMerge)
		m.next = append(m.next, i+1)
		m.prev = append(m.prev, i-1)
		look(i)
	}
	for {
		top, ok := m.queue.pop()
		if !ok {
			break
		}
		i := int32(top & math.MaxUint32)
		if x := m.merges[i]; x == noMerge || x>>32 != top>>32 {
			continue // the pair has changed since it was queued
		}
		j := m.next[i]
		m.ids[i] = m.merges[i].id()
		m.merges[j] = noMerge
		m.next[i] = m.next[j]
		if m.next[i] < int32(n) {
			m.prev[m.next[i]] = i
		}
		look(i)
		if m.prev[i] >= 0 {
			look(m.prev[i])
		}
	}
	kept := m.ids[:0]
	for i := int32(0); i < int32(n); i = m.next[i] {
		kept = append(kept, m.ids[i])
	}
	return kept
}
