package kernels

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"

	"github.com/gofsdp/gofsdp/cuda/sim/mutate"
	"github.com/gofsdp/gofsdp/cuda/sim/ptx"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// The tests of this package, tried: each mutant of the committed PTX is run on the operations that they verify,
// and has to be found by wrong numbers, a fault, a race, or more or less work than the kernel's.

const (
	// mutantsVariable says how many mutants are tried, spread over kernels and kinds; or which part of them; or all.
	mutantsVariable = "GOFSDP_MUTANTS"
	// familiesVariable restricts them to some families.
	familiesVariable = "GOFSDP_MUTANTS_OF"
	// allowed is how many mutants, of each hundred, may survive.
	allowed = 5
)

// trial is an operation that a test verifies.
type trial struct {
	op     device.Op
	module string // of its kernels
	number uint64
	asked  func(got, want device.Op) error // nil: to be within bounds
	traps  bool                            // it must
	counts bool                            // what it executes is known: it is always the same operation
	once   sync.Once
	want   device.Op
	bounds optest.Bounds
	work   ptx.Stats // of the right kernels
	covers []bool    // lines of the module
	limit  int64     // instructions of a warp: no warp of the right kernels has more than all have together
	err    error     // of the right kernels
}

// copyOf returns a copy of the operation that lies like it: at addresses for 16 bytes or not.
func (t *trial) copyOf(m optest.Memory) device.Op {
	for _, o := range device.Operands(t.op) {
		if o.T.Addr%16 != 0 {
			return shifted(m, t.op)
		}
	}
	return m.Clone(t.op)
}

// prepare computes what is right.
func (t *trial) prepare(tb testing.TB) error {
	t.once.Do(func() {
		m := optest.NewMemory(tb, rand.New(rand.NewPCG(t.number, 0)))
		if t.asked == nil {
			t.bounds = m.Bounds(t.op)
		}
		if !t.traps {
			t.want = m.Clone(t.op)
			t.want.Reference()
		}
		got := t.copyOf(m)
		t.covers = make([]bool, strings.Count(PTX(t.module), "\n"))
		t.err = t.judge(got, execute(got, ptx.Launch{Limit: 1 << 22, Stats: &t.work, Covered: t.covers}, interpreted))
		t.limit = t.work.Instructions + 1000
	})
	return t.err
}

// judge says what is wrong with a run of the operation.
func (t *trial) judge(got device.Op, err error) error {
	switch {
	case t.traps:
		return trapped(err)
	case err != nil:
		return err
	}
	if t.asked != nil {
		return t.asked(got, t.want)
	}
	return optest.Compare(got, t.want, t.bounds)
}

// restore makes a copy of an operation what it was.
func restore(c, op device.Op) {
	from := device.Operands(op)
	for i, o := range device.Operands(c) {
		copy(optest.Bytes(*o.T), optest.Bytes(*from[i].T))
	}
}

// verifying are the tests that call verify and its sisters; the first few do with random operations.
var verifying = []func(*testing.T){
	TestKernelsComputeWhatTheReferenceDoes, TestKernelsNeedNoAlignmentButThatOfAnElement, TestWhatIsNotFiniteIsNeverLost,
	TestAnIndexOutsideOfItsRangeStopsTheKernel, TestATargetOutsideOfTheVocabularyStopsTheKernel, TestAStartBehindItsRowStopsAttention,
	TestAttentionIsRightWhereTilesEndAndDocumentsBegin, TestAttentionOfLargeScoresIsFinite, TestACacheOfFewerThanNoRowsStopsDecoding, TestDecodingIsRightInShortAndLongCaches,
	TestNormsOfRowsOfAnyWidthAreRight, TestWeightsOfNormsAreSummedOverManyRows, TestGradientsOfTheHeadsWeightsAreSummedInParts,
	TestElementwiseOperationsEndAtAnyElement, TestEmbeddingsOfAnyWidthAreCopied,
	TestSumsLossAndUpdateHoldAtTheirEdges, TestAParameterAtTheEndOfItsRangeIsCopiedAsTheReferenceDoes, TestSumsOfSquaresEndAtAnyElement,
	TestSumsOfSquaresHaveTheBitsOfAChain, TestAttentionRoundsResultsToNearest, TestGradientsOfLogitsAreRoundedToNearest,
	TestEachPlaceOfAThreadIsRoundedToNearest, TestAttentionEndsAtAnyRow, TestTheGreatestScoreMayBeAnywhere,
}

const random = 4

var (
	testFunction = regexp.MustCompile(`(?ms)^func (Test\w+)\(t \*testing\.T\) \{$(.*?)^\}$`)
	verification = regexp.MustCompile(`\b(verify|verifyCopies|stops|recorder|roundsToNearest|verifyWithin)\(`)
)

func TestMutantsAreTriedOnAllThatIsVerified(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var called []string
	for _, file := range files {
		for _, f := range testFunction.FindAllStringSubmatch(readFile(t, file), -1) {
			if verification.MatchString(f[2]) {
				called = append(called, f[1])
			}
		}
	}
	var listed []string
	for _, test := range verifying {
		name := runtime.FuncForPC(reflect.ValueOf(test).Pointer()).Name()
		listed = append(listed, name[strings.LastIndexByte(name, '.')+1:])
	}
	slices.Sort(called)
	slices.Sort(listed)
	if !slices.Equal(called, listed) {
		t.Errorf("verifying, in this file, has to list the tests that verify: it has\n\t%v\nand should have\n\t%v", listed, called)
	}
}

// verified returns the operations that tests verify: always the same ones of a pass.
func verified(t *testing.T, pass int, tests []func(*testing.T)) []*trial {
	memory := optest.NewMemory(t, nil)
	var all []*trial
	recorder = func(op device.Op, asked func(got, want device.Op) error) {
		c := &trial{op: op}
		traps := asked != nil && reflect.ValueOf(asked).Pointer() == reflect.ValueOf(trap).Pointer()
		all = append(all, &trial{op: c.copyOf(memory), asked: asked, traps: traps, number: uint64(len(all))})
	}
	defer func() { recorder = nil }()
	for i, test := range tests {
		t.Setenv(optest.SeedVariable, strconv.Itoa(len(verifying)*pass+i))
		t.Run("recorded", test)
	}
	return all
}

// trialsOf returns what the tests verify, by kernel, the cheap ones first. Random operations are there twice, and
// once it is known what they execute.
func trialsOf(t *testing.T) map[string][]*trial {
	all := verified(t, counted, verifying)
	for _, c := range all {
		c.counts = !c.traps
	}
	all = append(all, verified(t, counted+1, verifying[:random])...)
	cost := func(t *trial) int64 { c := t.op.Cost(); return c.FLOPs + c.Bytes }
	slices.SortStableFunc(all, func(a, b *trial) int { return cmp.Compare(cost(a), cost(b)) })
	by := map[string][]*trial{}
	for _, c := range all {
		launches, err := Lower(c.op)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, l := range launches {
			i := slices.IndexFunc(All(), func(k Kernel) bool { return k.Name == l.Kernel })
			if m := All()[i].Module; c.module == "" {
				c.module = m
			} else if c.module != m {
				t.Fatalf("%s has kernels of %s and of %s", device.Format(c.op), c.module, m)
			}
			if !seen[l.Kernel] {
				by[l.Kernel] = append(by[l.Kernel], c)
			}
			seen[l.Kernel] = true
		}
	}
	return by
}

// hunter looks for mutants; each goroutine has one.
type hunter struct {
	t       *testing.T
	modules map[string]*mutate.Module
	trials  map[string][]*trial
	copies  map[*trial]device.Op
}

// errNoProgram is that of a mutant that the interpreter refuses: a rule made something that is no PTX.
var errNoProgram = errors.New("no program")

// errWork is that of a mutant whose numbers are right and whose work is another: the table of what kernels do shows it.
var errWork = errors.New("it does not do the kernel's work")

// find returns how a mutant shows, nil if it does not.
func (h *hunter) find(x mutate.Mutant) error {
	module, err := ptx.Parse(x.Module, h.modules[x.Module].With(x))
	if err != nil {
		return fmt.Errorf("%w: %w", errNoProgram, err)
	}
	find := func(name string) (*ptx.Kernel, error) {
		if name == x.Kernel {
			return module.Kernels[name], nil
		}
		return interpreted(name)
	}
	schedules := []ptx.Launch{{}, {Order: ptx.Random, Seed: 1, Races: true}}
	switch x.Kind {
	case mutate.BarrierDropped, mutate.WarpBarrierDropped, mutate.WaitDropped, mutate.WaitChanged, mutate.CommitDropped:
		slices.Reverse(schedules)
	}
	worked := error(nil) // says that its work is another, where nothing worse shows
	for _, how := range schedules {
		for _, c := range h.trials[x.Kernel] {
			if err := c.prepare(h.t); err != nil {
				return fmt.Errorf("%w: the kernel itself is wrong: %w", errNoProgram, err)
			}
			if !c.covers[x.Line-1] {
				continue // and its change is nothing
			}
			got := h.copies[c]
			if got == nil {
				got = c.copyOf(optest.NewMemory(h.t, nil))
				h.copies[c] = got
			} else {
				restore(got, c.op)
			}
			var work ptx.Stats
			how.Workers, how.Limit, how.Stats = 1, c.limit, &work
			err := c.judge(got, execute(got, how, find))
			if err != nil {
				return fmt.Errorf("%s: %w", device.Format(c.op), err)
			}
			if worked == nil && c.counts && how.Order == ptx.Forward && work != c.work {
				worked = fmt.Errorf("%s: %w", device.Format(c.op), errWork)
			}
		}
	}
	return worked
}

func TestMutantsOfTheKernelsAreFound(t *testing.T) {
	many := os.Getenv(mutantsVariable)
	if many == "" {
		t.Skip(mutantsVariable + " is not set; make mutate sets it")
	}
	modules := map[string]*mutate.Module{}
	var mutants []mutate.Mutant
	for _, name := range Modules() {
		if only := strings.Fields(os.Getenv(familiesVariable)); len(only) > 0 && !slices.Contains(only, name) {
			continue
		}
		m := mutate.Read(name+".ptx", PTX(name))
		modules[name+".ptx"] = m
		mutants = append(mutants, m.Mutants()...)
	}
	sources := sourcesOf(t)
	mutants = slices.DeleteFunc(mutants, sources.library)
	part, isPart := strings.CutPrefix(many, "1/")
	n, err := strconv.Atoi(part)
	switch {
	case many == "all":
	case err != nil || n <= 0:
		t.Fatalf("%s is %q, and neither a number, nor a part such as 1/100, nor all", mutantsVariable, many)
	case isPart:
		var some []mutate.Mutant
		for i := n / 2; i < len(mutants); i += n {
			some = append(some, mutants[i])
		}
		mutants = some
	default:
		mutants = mutate.Choose(mutants, n)
	}
	trials := trialsOf(t)
	found := make([]error, len(mutants))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			h := hunter{t, modules, trials, map[*trial]device.Op{}}
			for {
				i := int(next.Add(1)) - 1
				if i >= len(mutants) {
					return
				}
				err := h.find(mutants[i])
				if fault := (*ptx.Fault)(nil); errors.As(err, &fault) {
					err = errors.New(err.Error()) // a fault holds the text of its module
				}
				found[i] = err
			}
		})
	}
	wg.Wait()
	report(t, sources, mutants, found)
}

// report prints what was found, by kernel and by kind, and fails where that is too little, or not explained.
func report(t *testing.T, sources sources, mutants []mutate.Mutant, found []error) {
	kernels, kinds := &tally{}, &tally{}
	var survivors []mutate.Mutant
	byWork := 0
	for i, x := range mutants {
		if errors.Is(found[i], errNoProgram) {
			t.Errorf("%v: %v", x, found[i])
		}
		kernels.add(x.Kernel, found[i] != nil)
		kinds.add(string(x.Kind), found[i] != nil)
		if errors.Is(found[i], errWork) {
			byWork++
		}
		if found[i] == nil {
			survivors = append(survivors, x)
		}
		if testing.Verbose() && len(mutants) <= 200 {
			t.Logf("%v\n\t%v", x, found[i])
		}
	}
	t.Logf("by kernel:\n%v", kernels)
	t.Logf("by kind:\n%v", kinds)
	explain(t, sources, survivors, os.Getenv(mutantsVariable) == "all" && os.Getenv(familiesVariable) == "")
	left, all := len(survivors), len(mutants)
	t.Logf("%d mutants, %d found, %d of them by their work alone: %.2f %%", all, all-left, byWork, 100*float64(all-left)/float64(all))
	if 100*left > allowed*all {
		t.Errorf("%d of %d mutants are not found; %d of 100 may be", left, all, allowed)
	}
}

// tally counts mutants by name.
type tally struct {
	names []string
	found map[string][2]int // not found, found
}

func (t *tally) add(name string, found bool) {
	if t.found == nil {
		t.found = map[string][2]int{}
	}
	n, ok := t.found[name]
	if !ok {
		t.names = append(t.names, name)
	}
	i := 0
	if found {
		i = 1
	}
	n[i]++
	t.found[name] = n
}

// String lays the counts out as a table.
func (t *tally) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "mutants\tfound\tsurvived\t%\t\t")
	for _, name := range t.names {
		n := t.found[name]
		fmt.Fprintf(w, "%d\t%d\t%d\t%.1f\t%s\t\n", n[0]+n[1], n[1], n[0], 100*float64(n[1])/float64(n[0]+n[1]), name)
	}
	w.Flush()
	return b.String()
}
