//! Plots as SVG: lines over an axis that is even or logarithmic, with round ticks, for light and dark pages.
//!
//! Colours are those of Okabe and Ito, which colour-blind people tell apart; limits are dashed besides.

pub mod axis;

use std::fmt::Write;

use crate::base::template::html::{MarkupPlace, escape_html};

pub use axis::Axis;

const WIDTH: f64 = 820.0;
const HEIGHT: f64 = 460.0;
/// Around the lines: left, top, right, bottom.
const LEFT: f64 = 78.0;
const TOP: f64 = 96.0;
const RIGHT: f64 = 28.0;
const BOTTOM: f64 = 62.0;
/// Of the type in the legend, on average.
const LETTER: f64 = 6.7;
const COLOURS: usize = 4;
const STYLE: &str = "
    svg { font-family: system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif; font-size: 13px }
    .page { fill: #ffffff; stroke: #d8dee4 } .ink { fill: #1f2328 } .faint { fill: #59636e }
    .grid { stroke: #d8dee4; stroke-width: 1 } .fine { stroke: #eff2f5; stroke-width: 1 } .edge { stroke: #818b98 }
    .line { fill: none; stroke-width: 2.25; stroke-linejoin: round; stroke-linecap: round } .limit { stroke-dasharray: 2 6 }
    .title { font-size: 17px; font-weight: 600 } .mark { font-size: 12px; font-weight: 600 }
    .s0 { stroke: #0072b2 } .s1 { stroke: #d55e00 } .s2 { stroke: #009e73 } .s3 { stroke: #cc79a7 }
    .f0 { fill: #0072b2 } .f1 { fill: #d55e00 } .f2 { fill: #009e73 } .f3 { fill: #cc79a7 }
    @media (prefers-color-scheme: dark) {
      .page { fill: #0d1117; stroke: #3d444d } .ink { fill: #f0f6fc } .faint { fill: #9198a1 }
      .grid { stroke: #3d444d } .fine { stroke: #1c2229 } .edge { stroke: #656c76 }
      .s0 { stroke: #56b4e9 } .s1 { stroke: #e69f00 } .s2 { stroke: #2fc79a } .s3 { stroke: #e3a6c8 }
      .f0 { fill: #56b4e9 } .f1 { fill: #e69f00 } .f2 { fill: #2fc79a } .f3 { fill: #e3a6c8 }
    }";

/// Lines over two axes.
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    /// Title of the plot.
    pub title: String,
    /// The facts that a reader needs, in one line.
    pub subtitle: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Lines to draw.
    pub lines: Vec<PlotLine>,
}

/// Points that belong together.
#[derive(Debug, Clone, PartialEq)]
pub struct PlotLine {
    /// Name of the line in the legend.
    pub name: String,
    /// Which of the colours; a figure and its limit share one.
    pub colour: usize,
    /// A limit is dashed.
    pub limit: bool,
    /// Each point is shown: they are few, and were measured each by itself.
    pub dots: bool,
    /// Points in the order in which they are joined.
    pub points: Vec<(f64, f64)>,
    /// One point that is named.
    pub mark: Option<(f64, f64, String)>,
}

impl Plot {
    /// The whole file.
    pub fn svg(&self) -> String {
        let mut svg = String::new();
        // a String takes everything that is written to it
        let _ = self.write(&mut svg);
        svg
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" role=\"img\">\n<title>{}</title>\n<desc>{}</desc>\n<style>{STYLE}\n</style>",
            escape_html(&self.title, MarkupPlace::DoubleQuoted),
            escape_html(&self.subtitle, MarkupPlace::DoubleQuoted)
        )?;
        let (w, h) = (WIDTH - 1.0, HEIGHT - 1.0);
        writeln!(out, "<rect class=\"page\" x=\"0.5\" y=\"0.5\" width=\"{w}\" height=\"{h}\" rx=\"8\"/>")?;
        text(out, LEFT, 32.0, "start", "title ink", &self.title)?;
        text(out, LEFT, 53.0, "start", "faint", &self.subtitle)?;
        self.write_legend(out)?;
        self.write_axes(out)?;
        for line in &self.lines {
            self.write_line(out, line)?;
        }
        self.write_marks(out)?;
        writeln!(out, "</svg>")
    }

    fn write_legend(&self, out: &mut String) -> std::fmt::Result {
        let mut x = LEFT;
        for line in &self.lines {
            let class = if line.limit { " limit" } else { "" };
            writeln!(
                out,
                "<line class=\"line s{}{class}\" x1=\"{x:.1}\" y1=\"75\" x2=\"{:.1}\" y2=\"75\"/>",
                line.colour % COLOURS,
                x + 24.0
            )?;
            text(out, x + 31.0, 79.0, "start", "ink", &line.name)?;
            x += 31.0 + line.name.chars().count() as f64 * LETTER + 18.0;
        }
        Ok(())
    }

    fn write_axes(&self, out: &mut String) -> std::fmt::Result {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for (value, is_fine) in self.x.grid() {
            let x = self.at_x(value);
            let class = if is_fine { "fine" } else { "grid" };
            writeln!(out, "<line class=\"{class}\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>")?;
        }
        for (value, is_fine) in self.y.grid() {
            let y = self.at_y(value);
            let class = if is_fine { "fine" } else { "grid" };
            writeln!(out, "<line class=\"{class}\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>")?;
        }
        writeln!(out, "<line class=\"edge\" x1=\"{LEFT}\" y1=\"{bottom}\" x2=\"{right}\" y2=\"{bottom}\"/>")?;
        for value in self.x.ticks() {
            text(out, self.at_x(value), bottom + 20.0, "middle", "faint", &self.x.label(value))?;
        }
        for value in self.y.ticks() {
            text(out, LEFT - 9.0, self.at_y(value) + 4.5, "end", "faint", &self.y.label(value))?;
        }
        text(out, (LEFT + right) / 2.0, HEIGHT - 16.0, "middle", "ink", &self.x.name)?;
        let middle = (TOP + bottom) / 2.0;
        writeln!(
            out,
            "<text class=\"ink\" text-anchor=\"middle\" transform=\"translate(20 {middle}) rotate(-90)\">{}</text>",
            escape_html(&self.y.name, MarkupPlace::DoubleQuoted)
        )
    }

    fn write_line(&self, out: &mut String, line: &PlotLine) -> std::fmt::Result {
        let class = if line.limit { " limit" } else { "" };
        let colour = line.colour % COLOURS;
        let points: Vec<String> =
            line.points.iter().map(|(x, y)| format!("{:.1},{:.1}", self.at_x(*x), self.at_y(*y))).collect();
        writeln!(out, "<polyline class=\"line s{colour}{class}\" points=\"{}\"/>", points.join(" "))?;
        for (x, y) in line.points.iter().filter(|_| line.dots) {
            writeln!(
                out,
                "<circle class=\"f{colour}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\"/>",
                self.at_x(*x),
                self.at_y(*y)
            )?;
        }
        Ok(())
    }

    /// Named points, each a line of type below the one before where they would cover each other.
    fn write_marks(&self, out: &mut String) -> std::fmt::Result {
        let mut taken: Vec<(f64, f64)> = Vec::new();
        for line in &self.lines {
            let Some((x, y, name)) = &line.mark else { continue };
            let (x, y, colour) = (self.at_x(*x), self.at_y(*y), line.colour % COLOURS);
            let wide = name.chars().count() as f64 * LETTER;
            let (at, anchor) = if x + wide + 12.0 > WIDTH - RIGHT { (x - 9.0, "end") } else { (x + 9.0, "start") };
            let mut low = y + 17.0;
            while taken.iter().any(|(left, top)| (left - at).abs() < wide + 10.0 && (top - low).abs() < 15.0) {
                low += 15.0;
            }
            taken.push((at, low));
            writeln!(out, "<circle class=\"f{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"/>")?;
            text(out, at, low, anchor, &format!("mark f{colour}"), name)?;
        }
        Ok(())
    }

    fn at_x(&self, value: f64) -> f64 {
        LEFT + self.x.share(value) * (WIDTH - LEFT - RIGHT)
    }

    fn at_y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.share(value) * (HEIGHT - TOP - BOTTOM)
    }
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, class: &str, text: &str) -> std::fmt::Result {
    let text = escape_html(text, MarkupPlace::DoubleQuoted);
    writeln!(out, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plot_has_its_names_its_lines_where_they_belong_and_no_markup_from_its_words() {
        let line = PlotLine {
            name: "a < b".into(),
            colour: 5,
            limit: true,
            dots: true,
            points: vec![(1.0, 0.0), (100.0, 50.0)],
            mark: Some((100.0, 50.0, "p99 & more".into())),
        };
        let plot = Plot {
            title: "Lateness".into(),
            subtitle: "all of it".into(),
            x: Axis::logarithmic("ms", 1.0, 100.0),
            y: Axis::even("share", 100.0),
            lines: vec![line],
        };
        let svg = plot.svg();
        let (right, middle) = (WIDTH - RIGHT, (TOP + HEIGHT - BOTTOM) / 2.0);
        let points = format!("points=\"{LEFT:.1},{:.1} {right:.1},{middle:.1}\"", HEIGHT - BOTTOM);
        for part in
            [points.as_str(), "line s1 limit", "a &lt; b", "p99 &amp; more", "<title>Lateness</title>", ">10</text>"]
        {
            assert!(svg.contains(part), "{part} is not in\n{svg}");
        }
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.ends_with("</svg>\n"));
    }
}
