package model

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/gofsdp/gofsdp/internal/golden"
)

func TestParametersAreThoseOfTransformers(t *testing.T) {
	names, err := golden.Names()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		c, err := golden.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := ParseConfig(c.Config, name)
		if err != nil {
			t.Fatal(err)
		}
		var got, want []string
		for _, p := range cfg.Params() {
			got = append(got, fmt.Sprint(p.Name, p.Shape))
			if p.Decay != (len(p.Shape) == 2) {
				t.Errorf("%s decays: %v", p.Name, p.Decay)
			}
		}
		for _, p := range c.Parameters {
			want = append(want, fmt.Sprint(p.Name, p.Shape))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s has the parameters\n%v\ntransformers'\n%v", name, got, want)
		}
	}
}

func TestATiedModelHasOneUnitLess(t *testing.T) {
	for _, tied := range []bool{true, false} {
		c := Config{Layers: 3, Vocab: 5, Hidden: 4, Heads: 1, KVHeads: 1, HeadSize: 4, MLP: 4, Tied: tied}
		units := c.Units()
		head := units[c.HeadUnit()]
		if tied && (len(units) != 4 || c.HeadUnit() != 0 || c.HeadName() != EmbedName) || !tied && (len(units) != 5 || c.HeadUnit() != 4) {
			t.Errorf("tied %v: %d units, the head in %d (%s)", tied, len(units), c.HeadUnit(), head.Name)
		}
		if !slices.ContainsFunc(head.Params, func(p Param) bool { return p.Name == NormName }) {
			t.Errorf("tied %v: the head's unit lacks the final norm", tied)
		}
	}
}

func TestFreshWeightsDoNotDependOnWhoMakesThem(t *testing.T) {
	c := Config{InitStd: 0.02}
	p := Param{Name: "w", Shape: []int{300, 500}, Init: Normal}
	whole, parts := make([]float32, p.Len()), make([]float32, p.Len())
	c.InitParam(whole, p, 1, 0)
	for i := 0; i < len(parts); i += 777 {
		end := min(i+777, len(parts))
		c.InitParam(parts[i:end], p, 1, i)
	}
	if !slices.Equal(whole, parts) {
		t.Error("made in parts, a parameter differs")
	}
	other := make([]float32, p.Len())
	c.InitParam(other, p, 2, 0)
	p.Name = "v"
	c.InitParam(parts, p, 1, 0)
	if whole[0] == other[0] || whole[0] == parts[0] {
		t.Error("another seed or another name gives the same values")
	}
}

func TestFreshWeightsAreNormal(t *testing.T) {
	c := Config{InitStd: 1}
	p := Param{Name: "w", Shape: []int{1 << 20}, Init: Normal}
	x := make([]float32, p.Len())
	c.InitParam(x, p, 1, 0)
	var m [5]float64
	var within [4]float64
	for _, v := range x {
		for k := range m {
			m[k] += math.Pow(float64(v), float64(k)) / float64(len(x))
		}
		for k := range within {
			if math.Abs(float64(v)) < float64(k) {
				within[k] += 1 / float64(len(x))
			}
		}
		if math.Abs(float64(v)) > 4 {
			t.Fatalf("a weight lies %v standard deviations out", v)
		}
	}
	if math.Abs(m[1]) > 0.005 || math.Abs(m[2]-1) > 0.01 || math.Abs(m[3]) > 0.02 || math.Abs(m[4]-3) > 0.1 {
		t.Errorf("the moments are %.4f", m[1:])
	}
	for k, want := range []float64{0, 0.6827, 0.9545, 0.9973} {
		if math.Abs(within[k]-want) > 0.002 {
			t.Errorf("%.4f of the weights lie within %d, want %.4f", within[k], k, want)
		}
	}
}

func TestNormsBeginAtOneAndBiasesAtZero(t *testing.T) {
	x := []float32{5, 5}
	(Config{}).InitParam(x, Param{Init: One}, 1, 0)
	if x[0] != 1 || x[1] != 1 {
		t.Error("a norm begins at", x)
	}
	(Config{}).InitParam(x, Param{Init: Zero}, 1, 0)
	if x[0] != 0 || x[1] != 0 {
		t.Error("a bias begins at", x)
	}
}

func BenchmarkInitParam(b *testing.B) {
	c, p := Config{InitStd: 0.02}, Param{Name: "w", Shape: []int{1 << 20}}
	x := make([]float32, p.Len())
	b.SetBytes(4 << 20)
	for b.Loop() {
		c.InitParam(x, p, 1, 0)
	}
}
