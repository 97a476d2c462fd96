package report

import (
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/gofsdp/gofsdp/bench"
)

// rows is the body of a chart that has a line for each thing, in groups: a bar
// from zero, or a dot, with a whisker from the lowest to the highest.
type rows struct {
	groups []group
	axis   string
	dots   bool
	even   float64 // where a line says that both are level; 0: none
	least  float64 // of the axis with dots
}

type group struct {
	title string
	rows  []row
}

type row struct {
	label     string
	colour    color.Color
	spread    bench.Spread // in the axis' unit
	firm, aim float64      // 0: none
	text      string       // behind the mark; of what was not measured, instead of it
}

const (
	rowHeight  = 16 * vg.Length(1)
	headHeight = 20 * vg.Length(1)
	groupGap   = 6 * vg.Length(1)
	axisRoom   = 34 * vg.Length(1)
	indent     = 10 * vg.Length(1)
)

var (
	groupStyle = words(10.5, ink, text.XLeft, text.YCenter)
	labelStyle = words(10, ink, text.XLeft, text.YCenter)
	valueStyle = words(9.5, ink, text.XLeft, text.YCenter)
	firmLine   = draw.LineStyle{Color: color.Black, Width: 1.8}
	aimLine    = draw.LineStyle{Color: color.Black, Width: 1.2, Dashes: []vg.Length{2, 2}}
)

// newRowChart returns the chart, as high as its rows and as wide as its words
// need.
func newRowChart(name, title, note string, r rows) chart {
	c := chart{name: name, title: title, note: note, body: r.draw}
	labels, values := r.widths()
	c.width = max(chartWidth, labels+values+chartWidth/3)
	firm, aim := false, false
	for _, g := range r.groups {
		c.width = max(c.width, roomFor(groupStyle, g.title)+2*margin)
		for _, x := range g.rows {
			firm, aim = firm || x.firm != 0, aim || x.aim != 0
		}
	}
	if firm {
		c.keys = append(c.keys, key{"firm", firmLine, true})
	}
	if aim {
		c.keys = append(c.keys, key{"aim", aimLine, true})
	}
	c.height = c.head() + r.height() + axisRoom + 2*margin
	return c
}

// widths are those of the longest label and of the longest text.
func (r rows) widths() (labels, values vg.Length) {
	for _, g := range r.groups {
		for _, x := range g.rows {
			labels = max(labels, indent+roomFor(labelStyle, x.label))
			values = max(values, roomFor(valueStyle, x.text))
		}
	}
	return labels, values
}

// height is that of all rows.
func (r rows) height() vg.Length {
	h := vg.Length(0)
	for _, g := range r.groups {
		h += headHeight + rowHeight*vg.Length(len(g.rows)) + groupGap
	}
	return h
}

func (r rows) draw(c draw.Canvas) {
	labels, values := r.widths()
	high := 0.0
	for _, g := range r.groups {
		for _, x := range g.rows {
			high = max(high, x.spread.High, x.firm, x.aim)
		}
	}
	p := axes(r.axis)
	p.HideY()
	p.X.Tick.Marker = roundTicks{}
	p.Y.Min, p.Y.Max = -float64(r.height()), 0
	// The longest text must have room behind the highest value.
	room := c.Size().X - labels - 8
	p.X.Min = r.least
	p.X.Max = r.least + (high-r.least)*float64(room/max(room-values-12, room/4))
	if !(p.X.Max > p.X.Min) {
		p.X.Max = p.X.Min + 1
	}
	p.Add(rowPlotter{r, labels})
	p.Draw(draw.Crop(c, labels+8, 0, 0, 0))
}

// rowPlotter draws the rows beside and within a plot, a unit of whose vertical
// axis is a point.
type rowPlotter struct {
	rows
	labels vg.Length // the room to the left of the plot
}

// Plot draws the rows.
func (r rowPlotter) Plot(c draw.Canvas, p *plot.Plot) {
	toX, toY := p.Transforms(&c)
	left, y := c.Min.X-r.labels-8, vg.Length(0)
	for _, g := range r.groups {
		c.FillText(groupStyle, vg.Point{X: left, Y: toY(-float64(y + headHeight/2))}, g.title)
		y += headHeight
		r.grid(&c, p, toX, toY(-float64(y)), toY(-float64(y+rowHeight*vg.Length(len(g.rows)))))
		for _, x := range g.rows {
			at := toY(-float64(y + rowHeight/2))
			c.FillText(labelStyle, vg.Point{X: left + indent, Y: at + 1}, x.label)
			r.mark(&c, x, toX, at)
			y += rowHeight
		}
		y += groupGap
	}
}

// grid draws the lines behind the rows of a group, which begin at top.
func (r rowPlotter) grid(c *draw.Canvas, p *plot.Plot, toX func(float64) vg.Length, top, bottom vg.Length) {
	for _, t := range p.X.Tick.Marker.Ticks(p.X.Min, p.X.Max) {
		c.StrokeLine2(draw.LineStyle{Color: thin, Width: 0.5}, toX(t.Value), bottom, toX(t.Value), top)
	}
	if r.even > p.X.Min {
		c.StrokeLine2(draw.LineStyle{Color: dim, Width: 1}, toX(r.even), bottom, toX(r.even), top)
	}
}

// mark draws one row within the plot.
func (r rowPlotter) mark(c *draw.Canvas, x row, toX func(float64) vg.Length, at vg.Length) {
	const half = rowHeight/2 - 2
	end := toX(r.least)
	if s := x.spread; s.Count > 0 {
		middle := toX(s.Median)
		whisker := draw.LineStyle{Color: ink, Width: 1}
		if r.dots {
			whisker = draw.LineStyle{Color: x.colour, Width: 2}
		} else {
			c.FillPolygon(x.colour, []vg.Point{{X: end, Y: at - half}, {X: middle, Y: at - half}, {X: middle, Y: at + half}, {X: end, Y: at + half}})
		}
		if s.Count > 1 {
			c.StrokeLine2(whisker, toX(s.Low), at, toX(s.High), at)
			for _, v := range []float64{s.Low, s.High} {
				c.StrokeLine2(whisker, toX(v), at-3, toX(v), at+3)
			}
		}
		if r.dots {
			c.DrawGlyphNoClip(draw.GlyphStyle{Color: x.colour, Radius: 3.6, Shape: draw.CircleGlyph{}}, vg.Point{X: middle, Y: at})
		}
		end = max(end, toX(s.High))
	}
	for _, t := range []struct {
		value float64
		line  draw.LineStyle
	}{{x.firm, firmLine}, {x.aim, aimLine}} {
		if t.value != 0 {
			c.StrokeLine2(t.line, toX(t.value), at-rowHeight/2+1, toX(t.value), at+rowHeight/2-1)
			end = max(end, toX(t.value))
		}
	}
	// On white, since it may stand on a line of the grid.
	right := end + 6 + roomFor(valueStyle, x.text) + 1
	c.FillPolygon(color.White, []vg.Point{{X: end + 5, Y: at - half}, {X: right, Y: at - half}, {X: right, Y: at + half}, {X: end + 5, Y: at + half}})
	c.FillText(valueStyle, vg.Point{X: end + 6, Y: at + 1}, x.text)
}

// leastOf is where an axis with dots begins: below all that is on it.
func leastOf(groups []group, even float64) float64 {
	low, high := even, even
	for _, g := range groups {
		for _, x := range g.rows {
			for _, v := range []float64{x.spread.Low, x.spread.High, x.firm, x.aim} {
				if v != 0 {
					low, high = min(low, v), max(high, v)
				}
			}
		}
	}
	return max(0, math.Floor((low-0.05*(high-low))*20)/20)
}
