package tokenizer

// A learner keeps, for words made of tokens, how often each pair of
// neighbours occurs and in which words.
type learner struct {
	words  []trainedWord
	counts map[pair]int64
	// where lists the words that have or once had the pair.
	where map[pair][]int32
	// queue has at least one entry for each pair, with a count that is not
	// below the true one: counts that fall are corrected when they come up.
	queue heap[countedPair]
	grown map[pair]bool // scratch of join
}

type countedPair struct {
	pair  pair
	count int64
}

func newLearner(words []trainedWord) *learner {
	l := &learner{
		words:  words,
		counts: make(map[pair]int64),
		where:  make(map[pair][]int32),
		grown:  make(map[pair]bool),
	}
	l.queue.less = func(a, b countedPair) bool {
		return a.count > b.count || a.count == b.count && a.pair < b.pair
	}
	for i := range words {
		l.count(&words[i], words[i].count)
		l.index(int32(i), -1)
	}
	l.queueGrown()
	return l
}

// index notes that word i has the pairs that touch the token id, all of its
// pairs if id is negative. Only the counts of those can have grown.
func (l *learner) index(i, id int32) {
	w := &l.words[i]
	for k := 1; k < len(w.ids); k++ {
		if id >= 0 && w.ids[k-1] != id && w.ids[k] != id {
			continue
		}
		p := pairOf(w.ids[k-1], w.ids[k])
		if at := l.where[p]; len(at) == 0 || at[len(at)-1] != i {
			l.where[p] = append(at, i)
		}
		l.grown[p] = true
	}
}

// count adds n to the count of each pair of the word.
func (l *learner) count(w *trainedWord, n int64) {
	for k := 1; k < len(w.ids); k++ {
		l.counts[pairOf(w.ids[k-1], w.ids[k])] += n
	}
}

func (l *learner) queueGrown() {
	for p := range l.grown {
		if n := l.counts[p]; n > 0 {
			l.queue.push(countedPair{p, n})
		}
	}
	clear(l.grown)
}

// best returns the pair that occurs most often, false when none occurs twice.
func (l *learner) best() (pair, bool) {
	for {
		top, ok := l.queue.pop()
		if !ok {
			return 0, false
		}
		switch n := l.counts[top.pair]; {
		case n < 2:
		case n == top.count:
			return top.pair, true
		default:
			l.queue.push(countedPair{top.pair, n})
		}
	}
}

// join replaces the pair by the token id in all words.
func (l *learner) join(p pair, id int32) {
	left, right := p.left(), p.right()
	for _, i := range l.where[p] {
		w := &l.words[i]
		if !hasPair(w.ids, left, right) {
			continue
		}
		l.count(w, -w.count)
		joined := w.ids[:0]
		for k := 0; k < len(w.ids); k++ {
			if k+1 < len(w.ids) && w.ids[k] == left && w.ids[k+1] == right {
				joined = append(joined, id)
				k++
			} else {
				joined = append(joined, w.ids[k])
			}
		}
		w.ids = joined
		l.count(w, w.count)
		l.index(i, id)
	}
	delete(l.where, p)
	delete(l.counts, p)
	l.queueGrown()
}

func hasPair(ids []int32, left, right int32) bool {
	for k := 1; k < len(ids); k++ {
		if ids[k-1] == left && ids[k] == right {
			return true
		}
	}
	return false
}
