package report

import (
	"bytes"
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// chart is one picture. It has a white ground of its own, for pages that are
// dark.
type chart struct {
	name          string // of the file, without its ending
	title         string
	note          string // how it is read, below the title
	keys          []key  // below the note, where there are any
	width, height vg.Length
	body          func(draw.Canvas)
}

// key says what a colour or a line means.
type key struct {
	text    string
	line    draw.LineStyle
	upright bool
}

// The colours are those that people with any colour vision can tell apart.
// Okabe, Ito: Color Universal Design, 2008.
var (
	palette = []color.Color{
		color.RGBA{0x00, 0x72, 0xB2, 0xFF}, // blue
		color.RGBA{0xE6, 0x9F, 0x00, 0xFF}, // orange
		color.RGBA{0x00, 0x9E, 0x73, 0xFF}, // green
		color.RGBA{0xCC, 0x79, 0xA7, 0xFF}, // purple
		color.RGBA{0xD5, 0x5E, 0x00, 0xFF}, // vermilion
		color.RGBA{0x56, 0xB4, 0xE9, 0xFF}, // sky
	}
	ink  = color.RGBA{0x22, 0x22, 0x22, 0xFF}
	dim  = color.RGBA{0x66, 0x66, 0x66, 0xFF}
	thin = color.RGBA{0xDD, 0xDD, 0xDD, 0xFF}
)

const (
	chartWidth = 640 * vg.Length(1) // points
	margin     = 12 * vg.Length(1)
	titleRoom  = 26 * vg.Length(1)
	noteRoom   = 18 * vg.Length(1)
)

// words is the style of a text of that size.
func words(size vg.Length, c color.Color, x text.XAlignment, y text.YAlignment) text.Style {
	return text.Style{
		Color: c, Font: font.From(font.Font{Typeface: "Liberation", Variant: "Sans"}, size),
		XAlign: x, YAlign: y, Handler: plot.DefaultTextHandler,
	}
}

// roomFor is the width that a text may take. Fonts are not in the file, and some
// that stand in for the one that is measured are a seventh wider.
func roomFor(style text.Style, words string) vg.Length { return style.Width(words) * 8 / 7 }

// file is the name of the chart's file.
func (c *chart) file() string { return c.name + ".svg" }

// draw draws the chart on a canvas of its size.
func (c *chart) draw(canvas draw.Canvas) {
	r := canvas.Rectangle
	canvas.FillPolygon(color.White, []vg.Point{r.Min, {X: r.Max.X, Y: r.Min.Y}, r.Max, {X: r.Min.X, Y: r.Max.Y}})
	inner := draw.Crop(canvas, margin, -margin, margin, -margin)
	at := vg.Point{X: inner.Min.X, Y: inner.Max.Y}
	inner.FillText(words(14, ink, text.XLeft, text.YTop), at, c.title)
	at.Y -= titleRoom - 4
	inner.FillText(words(10, dim, text.XLeft, text.YTop), at, c.note)
	at.Y -= noteRoom
	style := words(10, ink, text.XLeft, text.YTop)
	for _, k := range c.keys {
		room := vg.Length(20)
		if k.upright {
			room = 4
			inner.StrokeLine2(k.line, at.X+2, at.Y-12, at.X+2, at.Y+1)
		} else {
			inner.StrokeLine2(k.line, at.X, at.Y-6, at.X+room, at.Y-6)
		}
		inner.FillText(style, vg.Point{X: at.X + room + 6, Y: at.Y}, k.text)
		at.X += room + 6 + roomFor(style, k.text) + 22
	}
	c.body(draw.Crop(inner, 0, 0, 0, -c.head()))
}

// head is the height of all that stands above the body.
func (c *chart) head() vg.Length {
	h := titleRoom + noteRoom
	if len(c.keys) > 0 {
		h += noteRoom
	}
	return h
}

// svg is the chart as a file. The fonts are not in it: those that it names first
// set the widths, the others are as wide, or are there everywhere.
func (c *chart) svg() ([]byte, error) {
	canvas := vgsvg.New(c.width, c.height)
	c.draw(draw.New(canvas))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return nil, err
	}
	return bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:'Liberation Sans',Arial,Helvetica,sans-serif;")), nil
}

// axes returns a plot with nothing in it but a horizontal axis and its grid.
func axes(label string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	p.X.Label.Text = label
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font = words(10, dim, text.XCenter, text.YBottom).Font
		axis.Label.TextStyle.Color = dim
		axis.Label.Padding = 3
		axis.Tick.Label.Font = words(9, dim, text.XCenter, text.YTop).Font
		axis.Tick.Label.Color = dim
		axis.LineStyle.Color, axis.Tick.LineStyle.Color = dim, dim
		axis.Tick.Length = 4
		axis.Padding = 0
	}
	return p
}

// roundTicks marks about six round numbers.
type roundTicks struct{}

// Ticks returns the multiples, from low to high, of 1, 2 or 5 times a power of
// ten.
func (roundTicks) Ticks(low, high float64) []plot.Tick {
	step := math.Pow(10, math.Floor(math.Log10(high-low)))
	for _, part := range []float64{0.1, 0.2, 0.5} {
		if (high-low)/(part*step) <= 8 {
			step *= part
			break
		}
	}
	var ticks []plot.Tick
	for i := math.Ceil(low / step); i*step <= high; i++ {
		ticks = append(ticks, plot.Tick{Value: i * step, Label: strconv.FormatFloat(i*step, 'g', 6, 64)})
	}
	return ticks
}
