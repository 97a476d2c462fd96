package model

import "testing"

// parameterCount counts by hand, apart from the parameter table. A tied head counts once.
func parameterCount(c Config) int {
	q, kv := c.Heads*c.HeadSize, c.KVHeads*c.HeadSize
	block := 2*q*c.Hidden + 2*kv*c.Hidden + 3*c.Hidden*c.MLP + 2*c.Hidden
	if c.QKVBias {
		block += q + 2*kv
	}
	if c.QKNorm {
		block += 2 * c.HeadSize
	}
	total := c.Vocab*c.Hidden + c.Layers*block + c.Hidden
	if !c.Tied {
		total += c.Vocab * c.Hidden
	}
	return total
}

func TestBuiltInShapesAreConsistentAndHaveAsManyParametersAsTheyClaim(t *testing.T) {
	// Of the published models these are the totals that the Hub shows for their safetensors.
	want := map[string]int{
		"tiny":         3_150_144,
		"bench-27m":    26_753_536,
		"bench-98m":    97_745_664,
		"qwen2.5-0.5b": 494_032_768,
		"qwen2.5-1.5b": 1_543_714_304,
		"qwen2.5-3b":   3_085_938_688,
		"qwen2.5-7b":   7_615_616_512,
		"qwen3-0.6b":   596_049_920,
		"smollm2-135m": 134_515_008,
	}
	for _, name := range BuiltinNames() {
		c, ok := Builtin(name)
		if !ok {
			t.Errorf("%s: listed, but not there", name)
		}
		for _, m := range c.check() {
			t.Errorf("%s: %s: %s", name, m.field, m.what)
		}
		if got := parameterCount(c); got != want[name] {
			t.Errorf("%s: %d parameters, want %d", name, got, want[name])
		}
	}
	if len(BuiltinNames()) != len(want) {
		t.Errorf("%d built-in shapes, want %d", len(BuiltinNames()), len(want))
	}
}

func TestAMisspeltShapeIsRecognised(t *testing.T) {
	for name, want := range map[string]string{
		"qwen2.5-05b":       "qwen2.5-0.5b",
		"Qwen2.5-1.5B":      "qwen2.5-1.5b",
		"Qwen/Qwen2.5-3B":   "qwen2.5-3b",
		"tny":               "tiny",
		"smollm-135m":       "smollm2-135m",
		"qwen3_0.6b":        "qwen3-0.6b",
		"bench98m":          "bench-98m",
		"gpt2":              "",
		"mistral-large-123": "",
		"":                  "",
	} {
		if got := nearestBuiltin(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestDistanceIsTheLeastNumberOfEdits(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}, {"same", "same", 0}} {
		if got := distance(test.a, test.b); got != test.want {
			t.Errorf("%q to %q: %d, want %d", test.a, test.b, got, test.want)
		}
		if got := distance(test.b, test.a); got != test.want {
			t.Errorf("%q to %q: %d, want %d", test.b, test.a, got, test.want)
		}
	}
}
