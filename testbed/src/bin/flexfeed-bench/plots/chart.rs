//! Charts: lines over axes, with a legend beside them, drawn as SVG.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

/// Size of one chart in an SVG, in pixels.
const SIZE: (u32, u32) = (840, 340);
/// Width of the legend.
const LEGEND: u32 = 210;
const FONT: &str = "sans-serif";
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xd6, 0x27, 0x28),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0xff, 0x7f, 0x0e),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0x17, 0xbe, 0xcf),
    RGBColor(0x8c, 0x56, 0x4b),
    RGBColor(0x55, 0x55, 0x55),
];

/// An axis.
#[derive(Debug, Clone)]
pub struct Axis {
    /// Label with its unit.
    pub label: String,
    /// First and last value.
    pub range: (f64, f64),
    /// Whether it is logarithmic.
    pub log: bool,
}

impl Axis {
    /// A linear axis.
    pub fn linear(label: &str, range: (f64, f64)) -> Axis {
        Axis {
            label: label.to_owned(),
            range,
            log: false,
        }
    }

    /// A logarithmic axis.
    pub fn log(label: &str, range: (f64, f64)) -> Axis {
        Axis {
            log: true,
            ..Axis::linear(label, range)
        }
    }
}

/// A line.
#[derive(Debug, Clone)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// Number of its colour.
    pub colour: usize,
    /// Whether it is dashed, as lines of others are.
    pub dashed: bool,
    /// Whether its points are marked.
    pub marked: bool,
    /// Points, by x.
    pub points: Vec<(f64, f64)>,
}

/// A chart.
#[derive(Debug, Clone)]
pub struct Chart {
    /// Title.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Lines, in the order of the legend.
    pub lines: Vec<Line>,
}

/// Draws charts one below the other.
///
/// # Errors
/// When the file cannot be written.
pub fn draw(path: &Path, charts: &[Chart]) -> Result<()> {
    let height = SIZE.1 * charts.len() as u32;
    let root = SVGBackend::new(path, (SIZE.0, height)).into_drawing_area();
    root.fill(&WHITE).map_err(problem)?;
    for (area, chart) in root.split_evenly((charts.len(), 1)).iter().zip(charts) {
        let (plot, legend) = area.split_horizontally(SIZE.0 - LEGEND);
        match (chart.x.log, chart.y.log) {
            (false, false) => plot_lines(&plot, chart, span(&chart.x), span(&chart.y))?,
            (true, false) => plot_lines(&plot, chart, span(&chart.x).log_scale(), span(&chart.y))?,
            (false, true) => plot_lines(&plot, chart, span(&chart.x), span(&chart.y).log_scale())?,
            (true, true) => plot_lines(
                &plot,
                chart,
                span(&chart.x).log_scale(),
                span(&chart.y).log_scale(),
            )?,
        }
        list_lines(&legend, chart)?;
    }
    root.present().map_err(problem)
}

fn span(axis: &Axis) -> std::ops::Range<f64> {
    axis.range.0..axis.range.1
}

fn problem(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("drawing a chart: {error}")
}

fn colour(line: &Line) -> RGBColor {
    COLOURS[line.colour % COLOURS.len()]
}

/// Returns a number with as few digits as its size needs.
pub fn short(value: f64) -> String {
    let (size, unit) = match value.abs() {
        v if v >= 1e9 => (1e9, "G"),
        v if v >= 1e6 => (1e6, "M"),
        v if v >= 1e4 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let value = value / size;
    let digits = match value.abs() {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 0.1 => 2,
        _ => 4,
    };
    let text = format!("{value:.digits$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{unit}")
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn plot_lines<X, Y>(area: &Area<'_>, chart: &Chart, x: X, y: Y) -> Result<()>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut context = ChartBuilder::on(area)
        .caption(&chart.title, (FONT, 17))
        .margin(8)
        .margin_right(14)
        .x_label_area_size(42)
        .y_label_area_size(62)
        .build_cartesian_2d(x, y)
        .map_err(problem)?;
    context
        .configure_mesh()
        .x_desc(&chart.x.label)
        .y_desc(&chart.y.label)
        .x_labels(12)
        .y_labels(9)
        .label_style((FONT, 12))
        .axis_desc_style((FONT, 13))
        .x_label_formatter(&|v| short(*v))
        .y_label_formatter(&|v| short(*v))
        .light_line_style(RGBColor(0xf2, 0xf2, 0xf2))
        .bold_line_style(RGBColor(0xd8, 0xd8, 0xd8))
        .draw()
        .map_err(problem)?;
    for line in &chart.lines {
        let style = colour(line).stroke_width(2);
        let inside = |(x, y): &(f64, f64)| {
            let holds = |axis: &Axis, v: f64| v >= axis.range.0 && v <= axis.range.1;
            holds(&chart.x, *x) && holds(&chart.y, *y)
        };
        let points: Vec<_> = line.points.iter().copied().filter(inside).collect();
        if line.dashed {
            let dashes = DashedLineSeries::new(points.clone(), 6, 4, style);
            context.draw_series(dashes).map_err(problem)?;
        } else {
            let solid = LineSeries::new(points.clone(), style);
            context.draw_series(solid).map_err(problem)?;
        }
        if line.marked {
            let marks = points
                .into_iter()
                .map(|point| Circle::new(point, 3, colour(line).filled()));
            context.draw_series(marks).map_err(problem)?;
        }
    }
    Ok(())
}

fn list_lines(area: &Area<'_>, chart: &Chart) -> Result<()> {
    for (line, row) in chart.lines.iter().zip(0..) {
        let y = 52 + row * 22;
        let style = colour(line).stroke_width(2);
        let pieces = if line.dashed { 3 } else { 1 };
        for piece in 0..pieces {
            let step = 26 / pieces;
            let from = 4 + piece * step;
            let to = from + if line.dashed { step - 3 } else { step };
            let path = PathElement::new(vec![(from, y), (to, y)], style);
            area.draw(&path).map_err(problem)?;
        }
        if line.marked {
            let mark = Circle::new((17, y), 3, colour(line).filled());
            area.draw(&mark).map_err(problem)?;
        }
        let text = Text::new(line.name.clone(), (38, y - 7), (FONT, 13));
        area.draw(&text).map_err(problem)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 0.001, 0.25, 1.5, 120.0, 5_000.0, 20_000.0, 1.5e6, 2e9].map(short);
        let expected = [
            "0", "0.001", "0.25", "1.5", "120", "5000", "20k", "1.5M", "2G",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn the_same_chart_is_the_same_file() {
        let chart = Chart {
            title: "Title".into(),
            x: Axis::log("x (s)", (1.0, 1000.0)),
            y: Axis::linear("y (ms)", (0.0, 10.0)),
            lines: vec![Line {
                name: "a line".into(),
                colour: 0,
                dashed: false,
                marked: true,
                points: vec![(1.0, 1.0), (10.0, 5.0), (2_000.0, 5.0)],
            }],
        };
        let folder = tempfile::tempdir().unwrap();
        let texts = ["a.svg", "b.svg"].map(|name| {
            let path = folder.path().join(name);
            draw(&path, std::slice::from_ref(&chart)).unwrap();
            std::fs::read_to_string(path).unwrap()
        });
        assert_eq!(texts[0], texts[1]);
        for part in ["x (s)", "y (ms)", "a line", "Title", "polyline"] {
            assert!(texts[0].contains(part), "{part}");
        }
        assert_eq!(texts[0].matches("<circle").count(), 3, "one is outside");
    }
}
