package model

import "cmp"

import "strings"

// builtin is a shape that needs no download. The published ones are the figures of the base models'
// config.json on the Hub; how many parameters each comes to is in its comment and in a test.
type builtin struct {
	name   string
	config Config
}

var builtins = []builtin{
	{"tiny", qwen2(Config{ // 3,150,144: the quickstart's
		Vocab: 4096, Hidden: 192, Layers: 6, Heads: 3, KVHeads: 1, HeadSize: 64, MLP: 512,
		MaxPositions: 2048, RopeTheta: 10000, Tied: true,
		// With the 0.02 of wide models, attention of one so narrow takes long to begin to learn.
		InitStd: 0.05,
	})},
	{"bench-27m", qwen2(Config{ // 26,753,536
		Vocab: 8192, Hidden: 512, Layers: 8, Heads: 8, KVHeads: 2, HeadSize: 64, MLP: 1408,
		MaxPositions: 4096, RopeTheta: 10000, Tied: true,
	})},
	{"bench-98m", qwen2(Config{ // 97,745,664: the one that speed is judged by
		Vocab: 32000, Hidden: 768, Layers: 12, Heads: 12, KVHeads: 2, HeadSize: 64, MLP: 2048,
		MaxPositions: 4096, RopeTheta: 10000, Tied: true,
	})},
	{"qwen2.5-0.5b", qwen2(Config{ // 494,032,768
		Vocab: 151936, Hidden: 896, Layers: 24, Heads: 14, KVHeads: 2, HeadSize: 64, MLP: 4864,
		MaxPositions: 32768, RopeTheta: 1e6, Tied: true,
	})},
	{"qwen2.5-1.5b", qwen2(Config{ // 1,543,714,304
		Vocab: 151936, Hidden: 1536, Layers: 28, Heads: 12, KVHeads: 2, HeadSize: 128, MLP: 8960,
		MaxPositions: 131072, RopeTheta: 1e6, Tied: true,
	})},
	{"qwen2.5-3b", qwen2(Config{ // 3,085,938,688
		Vocab: 151936, Hidden: 2048, Layers: 36, Heads: 16, KVHeads: 2, HeadSize: 128, MLP: 11008,
		MaxPositions: 32768, RopeTheta: 1e6, Tied: true,
	})},
	{"qwen2.5-7b", qwen2(Config{ // 7,615,616,512
		Vocab: 152064, Hidden: 3584, Layers: 28, Heads: 28, KVHeads: 4, HeadSize: 128, MLP: 18944,
		MaxPositions: 131072, RopeTheta: 1e6,
	})},
	{"qwen3-0.6b", Config{ // 596,049,920
		Family: "qwen3", QKNorm: true, NormEps: 1e-6, InitStd: 0.02,
		Vocab: 151936, Hidden: 1024, Layers: 28, Heads: 16, KVHeads: 8, HeadSize: 128, MLP: 3072,
		MaxPositions: 40960, RopeTheta: 1e6, Tied: true,
	}},
	{"smollm2-135m", Config{ // 134,515,008
		Family: "llama", NormEps: 1e-5, InitStd: 1.0 / 24,
		Vocab: 49152, Hidden: 576, Layers: 30, Heads: 9, KVHeads: 3, HeadSize: 64, MLP: 1536,
		MaxPositions: 8192, RopeTheta: 1e5, Tied: true,
	}},
}

// qwen2 adds what all Qwen2 and 2.5 models have in common.
func qwen2(c Config) Config {
	c.Family, c.QKVBias, c.NormEps = "qwen2", true, 1e-6
	c.InitStd = cmp.Or(c.InitStd, 0.02)
	return c
}

// Builtin returns the built-in shape of that name.
func Builtin(name string) (Config, bool) {
	for _, b := range builtins {
		if b.name == name {
			return b.config, true
		}
	}
	return Config{}, false
}

// BuiltinNames lists the built-in shapes, small ones first.
func BuiltinNames() []string {
	names := make([]string, len(builtins))
	for i, b := range builtins {
		names[i] = b.name
	}
	return names
}

// nearestBuiltin returns the built-in name that was most likely meant, or "" where none is near.
func nearestBuiltin(name string) string {
	name = strings.ToLower(name)
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		name = name[i+1:]
	}
	nearest, least := "", 1+len(name)/4
	for _, b := range builtins {
		if d := distance(name, b.name); d <= least && (nearest == "" || d < least) {
			nearest, least = b.name, d
		}
	}
	return nearest
}

// distance is Levenshtein's: the least number of bytes to insert, delete or replace.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			replace := row[j]
			if a[i] != b[j] {
				replace++
			}
			next[j+1] = min(replace, row[j+1]+1, next[j]+1)
		}
		row = next
	}
	return row[len(b)]
}
