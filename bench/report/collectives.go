package report

import (
	"fmt"
	"image/color"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/bench/scenario"
)

// panel is one collective of a chart of several: the rate of each side by size.
type panel struct {
	title string
	lines []line
}

// line is what one side reaches, or what it says is the limit.
type line struct {
	label  string
	style  draw.LineStyle
	points []point
}

// point is a size in MB of 2^20 bytes, and GB/s of the whole tensor.
type point struct {
	size float64
	rate bench.Spread
}

const panelHeight = 180 * vg.Length(1)

// collectives is the chart of a scenario of collectives, a panel each.
func collectives(r *scenario.Result, colours map[string]color.Color) []chart {
	var panels []panel
	c := chart{
		name: r.Scenario.Name, title: orElse(r.Scenario.Title, r.Scenario.Name), width: chartWidth,
		note: "bytes of the whole tensor (MB of 2^20) over the slowest rank's seconds: " + whiskers,
	}
	add := func(kind string, size float64, of string, style draw.LineStyle, seconds bench.Spread) {
		i := slices.IndexFunc(panels, func(p panel) bool { return p.title == kind })
		if i < 0 {
			i, panels = len(panels), append(panels, panel{title: kind})
		}
		p := &panels[i]
		j := slices.IndexFunc(p.lines, func(l line) bool { return l.label == of })
		if j < 0 {
			j, p.lines = len(p.lines), append(p.lines, line{label: of, style: style})
		}
		// The longest time is the lowest rate.
		bytes := size * (1 << 20) * 1e-9
		p.lines[j].points = append(p.lines[j].points, point{size, bench.Spread{
			Median: bytes / seconds.Median, Low: bytes / seconds.High, High: bytes / seconds.Low, Count: seconds.Count,
		}})
		if !slices.ContainsFunc(c.keys, func(k key) bool { return k.text == of }) {
			c.keys = append(c.keys, key{text: of, line: style})
		}
	}
	limit := draw.LineStyle{Color: dim, Width: 1.2, Dashes: []vg.Length{4, 3}}
	for _, m := range measurements(r) {
		kind, size, ok := collectiveOf(m.name)
		if !ok || m.seconds.Count == 0 {
			continue
		}
		add(kind, size, m.side, draw.LineStyle{Color: colours[m.side], Width: 2}, m.seconds)
		if m.limit.Count > 0 {
			add(kind, size, "limit of "+m.side+": a memory copy", limit, m.limit)
		}
	}
	if len(panels) == 0 {
		return nil
	}
	across := min(3, len(panels))
	if len(panels) == 4 {
		across = 2
	}
	down := (len(panels) + across - 1) / across
	c.height = c.head() + panelHeight*vg.Length(down) + 2*margin
	c.body = func(canvas draw.Canvas) {
		tiles := draw.Tiles{Cols: across, Rows: down, PadX: 18, PadY: 10}
		for i, p := range panels {
			p.draw(tiles.At(canvas, i%across, i/across))
		}
	}
	return []chart{c}
}

// collectiveOf reads a case's name: "all-gather 4 MB".
func collectiveOf(name string) (kind string, size float64, ok bool) {
	parts := strings.Fields(name)
	if len(parts) != 3 || parts[2] != "MB" {
		return "", 0, false
	}
	size, err := strconv.ParseFloat(parts[1], 64)
	return parts[0], size, err == nil && size > 0
}

func (p panel) draw(c draw.Canvas) {
	c.FillText(words(10.5, ink, text.XLeft, text.YTop), vg.Point{X: c.Min.X, Y: c.Max.Y}, p.title)
	a := axes("MB")
	a.Y.Label.Text = "GB/s"
	a.X.Scale = plot.LogScale{}
	a.Y.Tick.Marker = roundTicks{}
	var ticks plot.ConstantTicks
	low, high, top := 0.0, 0.0, 0.0
	for _, l := range p.lines {
		for _, x := range l.points {
			if !slices.ContainsFunc(ticks, func(t plot.Tick) bool { return t.Value == x.size }) {
				ticks = append(ticks, plot.Tick{Value: x.size, Label: fmt.Sprint(x.size)})
			}
			if low == 0 || x.size < low {
				low = x.size
			}
			high, top = max(high, x.size), max(top, x.rate.High)
		}
	}
	a.X.Tick.Marker = ticks
	a.X.Min, a.X.Max = low/1.3, high*1.3
	a.Y.Min, a.Y.Max = 0, top*1.05
	a.Add(grid{})
	for _, l := range p.lines {
		a.Add(l)
	}
	a.Draw(draw.Crop(c, 0, 0, 0, -18))
}

// grid is the lines across a plot at its vertical axis' ticks.
type grid struct{}

// Plot draws the lines.
func (grid) Plot(c draw.Canvas, p *plot.Plot) {
	_, toY := p.Transforms(&c)
	for _, t := range p.Y.Tick.Marker.Ticks(p.Y.Min, p.Y.Max) {
		c.StrokeLine2(draw.LineStyle{Color: thin, Width: 0.5}, c.Min.X, toY(t.Value), c.Max.X, toY(t.Value))
	}
}

// Plot draws the line, with whiskers where it was measured.
func (l line) Plot(c draw.Canvas, p *plot.Plot) {
	toX, toY := p.Transforms(&c)
	var path []vg.Point
	for _, x := range l.points {
		at := vg.Point{X: toX(x.size), Y: toY(x.rate.Median)}
		path = append(path, at)
		if l.style.Dashes != nil {
			continue
		}
		whisker := draw.LineStyle{Color: l.style.Color, Width: 1}
		c.StrokeLine2(whisker, at.X, toY(x.rate.Low), at.X, toY(x.rate.High))
		for _, v := range []float64{x.rate.Low, x.rate.High} {
			c.StrokeLine2(whisker, at.X-3, toY(v), at.X+3, toY(v))
		}
		c.DrawGlyphNoClip(draw.GlyphStyle{Color: l.style.Color, Radius: 3, Shape: draw.CircleGlyph{}}, at)
	}
	c.StrokeLines(l.style, path)
}
