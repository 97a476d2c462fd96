// Package config is the one YAML file: it composes the settings structs of other packages by
// reflection, fills them from defaults, files and --set, and remembers where every value came from.
//
// It knows keys, types, defaults, limits and places in files. It must not know what a setting means:
// what "sequence_length" does, and whether it fits the model, is said by the package that owns it.
//
// # Use
//
//	var c Config // sections: structs of settings, one a package
//	b := config.Bind(&c)                                 // every default is in place
//	b.LoadFile("run.yaml")                               // strict
//	b.ReplaceFile("cluster.yaml", "scaling", "run")      // --cluster: these sections alone
//	b.Set("data.sequence_length=512")                    // --set
//	if err := b.Check(); err != nil { ... }              // all mistakes of all of them, in order
//
// Loading never stops at the first mistake and never returns one: it notes them, and [Binding.Check]
// returns them all, each with its place:
//
//	run.yaml:7:3: data.seqence_length: unknown key; did you mean data.sequence_length?
//
// # How a section is added
//
// A package that is configured has one struct beside what it configures. Every exported field has
// tags:
//
//	type Settings struct {
//		SequenceLength int    `yaml:"sequence_length" default:"512" min:"1" help:"Tokens in a pack."`
//		Precision      string `yaml:"precision" default:"auto" enum:"auto,fp32,bf16" help:"Compute type."`
//	}
//
// The tags are these:
//
//   - yaml names the key; "-" leaves the field out.
//   - default is written as in YAML, a list as "a,b" or "[a, b]"; without it, the zero value holds.
//   - help is one sentence, unit included; it becomes the comment of the template and of the schema.
//   - enum lists the allowed words; min and max bound numbers and durations, both inclusive.
//
// A field is a string, bool, int, int64, float64, []string, time.Duration or a struct of such fields
// (its help tag describes the section). What a tag cannot say is said by a method of the struct,
//
//	func (s *Settings) Check() []error // each error begins with a key: "data.sequence_length: ..."
//
// which Check calls and whose errors it places at the line that set the key. Then the struct becomes
// a field of the top-level one, with its own yaml and help tags, and nothing else has to be changed:
// defaults, strict loading, the template, the schema and the list of keys follow from it.
//
// # YAML, the part of it that is read
//
// One document of at most 256 KiB, in UTF-8, that is a mapping. Plain values are read by the core
// schema of YAML 1.2, so "yes" and "on" are words and 1e-3 is a number; 10_000 is a number too.
// Anchors, aliases, merge keys, tags and directives are refused by name: a configuration says each
// thing once, in the open. So are duplicate keys.
package config
