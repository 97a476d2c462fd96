package scenario

// Scenario is one comparison: what is compared, how it is counted, and why that
// is fair. A file holds one, as YAML.
type Scenario struct {
	Name     string `yaml:"-" json:"name"` // the file's, without its ending
	Title    string `yaml:"title" json:"title"`
	Compared string `yaml:"compared" json:"compared"`
	Counted  string `yaml:"counted" json:"counted"`
	Fair     string `yaml:"fair" json:"fair"`

	Rounds int    `yaml:"rounds" json:"rounds"` // in each of which every side runs once, in turns; at least 5 to be judged by
	Work   Work   `yaml:"work" json:"work"`
	Sides  []Side `yaml:"sides" json:"sides"`

	Ratios []Ratio `yaml:"ratios" json:"ratios,omitempty"`
	Shares []Share `yaml:"shares" json:"shares,omitempty"`
	// Agree is the greatest relative difference between the losses of any two
	// sides, at each step; 0: losses are not compared.
	Agree float64 `yaml:"agree" json:"agree,omitempty"`
}

// The kinds of work.
const (
	Steps       = "steps"       // training steps, by case
	Collectives = "collectives" // over Work.Sizes
	Operations  = "operations"  // those of a training step, each with its limit
	Startup     = "startup"     // until the first step has ended
)

// Work is what all sides do. Every side gets it as a file, see Task.
type Work struct {
	Kind      string `yaml:"kind" json:"kind"`
	Model     string `yaml:"model" json:"model,omitempty"`         // a name that model.Resolve knows
	Precision string `yaml:"precision" json:"precision,omitempty"` // f32, or bf16: weights compute in bf16, masters and reductions are fp32
	Length    int    `yaml:"length" json:"length,omitempty"`       // tokens of a sequence
	Sequences int    `yaml:"sequences" json:"sequences,omitempty"` // of a rank's micro-batch
	Ranks     int    `yaml:"ranks" json:"ranks,omitempty"`
	Threads   int    `yaml:"threads" json:"threads,omitempty"` // of each rank
	Warm      int    `yaml:"warm" json:"warm,omitempty"`       // steps or repetitions that are not counted
	Timed     int    `yaml:"timed" json:"timed,omitempty"`     // those that are

	// Cases are training steps that differ, by a side that can do them all in one
	// run, in turns; of a peer there is one.
	Cases []StepCase `yaml:"cases" json:"cases,omitempty"`
	// Sizes are those of the whole tensor of a collective, in MB of 2^20 bytes.
	Sizes []int64 `yaml:"sizes" json:"sizes,omitempty"`
}

// StepCase is one way to do the training step.
type StepCase struct {
	Name         string `yaml:"name" json:"name"`
	Ranks        int    `yaml:"ranks" json:"ranks,omitempty"` // 0: Work.Ranks
	Mesh         string `yaml:"mesh" json:"mesh,omitempty"`   // empty: all ranks on one node
	Strategy     string `yaml:"strategy" json:"strategy"`
	MicroBatches int    `yaml:"micro_batches" json:"micro_batches,omitempty"` // 0: 1
	Recompute    string `yaml:"recompute" json:"recompute,omitempty"`         // empty: none
}

// Side is a program that does the work.
type Side struct {
	Name string `yaml:"name" json:"name"`
	// Command is the program and its arguments. It is run in the directory of the
	// repository, in its own process group, with "--task FILE" added, or nothing
	// where Marker is set. "gofsdp" stands for this binary and "python" for the
	// interpreter of the peers' virtual environment; "{scratch}" within an argument
	// for an empty directory that is removed when the run has ended.
	Command []string `yaml:"command" json:"command"`
	// Marker is, of a start-up, a regular expression: the start-up has ended when
	// the program writes a line that it matches. The program may then end by
	// itself.
	Marker string `yaml:"marker" json:"marker,omitempty"`
}

// What a ratio is of.
const (
	BySpeed  = "speed"  // work a second: Against's seconds over Of's, for equal work
	ByMemory = "memory" // Of's peak memory over Against's
)

// Ratio compares one thing with another. Both are named "SIDE" where the side
// has one case, else "SIDE/CASE"; a "*" at the end of the case stands for each
// case that begins so and that both have.
type Ratio struct {
	Of      string  `yaml:"of" json:"of"`
	Against string  `yaml:"against" json:"against"`
	By      string  `yaml:"by" json:"by"`
	Firm    float64 `yaml:"firm" json:"firm,omitempty"` // what must be reached: at least, or by memory at most; 0: shown only
	Aim     float64 `yaml:"aim" json:"aim,omitempty"`
	Why     string  `yaml:"why" json:"why,omitempty"` // said beside the figure
}

// Share is the part of the limit that something reached: of the machine's peak,
// or of what the side says in Case.Limit.
type Share struct {
	Of   string  `yaml:"of" json:"of"`
	Firm float64 `yaml:"firm" json:"firm,omitempty"`
	Aim  float64 `yaml:"aim" json:"aim,omitempty"`
	Why  string  `yaml:"why" json:"why,omitempty"`
}
