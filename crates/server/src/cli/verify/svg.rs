//! Plots as SVG inside of a page, whose style sheet gives them their colours. It knows no report.

use std::fmt::Write;

use vllm_apple_verify::Plot;

use super::html::escape;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 50.0;
/// Colours in the style sheet.
const COLOURS: usize = 6;
/// With more points than these, they have no dots: a line is drawn alone.
const DOTS: usize = 40;

/// Adds the plot with its title and its legend.
pub fn draw(plot: &Plot, page: &mut String) {
    let points = || plot.series.iter().flat_map(|series| &series.points);
    let x = Axis::new(points().map(|point| point.0), plot.log_x, LEFT, WIDTH - RIGHT);
    let y = Axis::new(points().map(|point| point.1), plot.log_y, HEIGHT - BOTTOM, TOP);
    let title = escape(&plot.title);
    let _ = writeln!(page, "<figure>\n<figcaption>{title}</figcaption>");
    let _ = writeln!(page, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">");
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    for (at, text) in x.ticks() {
        let _ = writeln!(page, "<line class=\"grid\" x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\"/>");
        let _ = writeln!(page, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>", bottom + 18.0);
    }
    for (at, text) in y.ticks() {
        let _ = writeln!(page, "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\"/>");
        let _ = writeln!(page, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>", LEFT - 8.0, at + 4.0);
    }
    let _ = writeln!(
        page,
        "<polyline class=\"axis\" style=\"--c: currentColor\" points=\"{LEFT},{TOP} {LEFT},{bottom} {right},{bottom}\"/>"
    );
    let middle = (LEFT + right) / 2.0;
    let _ = writeln!(
        page,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        HEIGHT - 10.0,
        escape(&plot.x)
    );
    let _ = writeln!(page, "<text x=\"{LEFT}\" y=\"14\">{}</text>", escape(&plot.y));
    for (number, series) in plot.series.iter().enumerate() {
        let place = |&(a, b): &(f64, f64)| Some((x.place(a)?, y.place(b)?, a, b));
        let placed: Vec<_> = series.points.iter().filter_map(place).collect();
        let line: Vec<String> = placed.iter().map(|(px, py, ..)| format!("{px:.1},{py:.1}")).collect();
        let _ = writeln!(page, "<g class=\"s{}\"><polyline points=\"{}\"/>", number % COLOURS, line.join(" "));
        if placed.len() <= DOTS {
            for (px, py, a, b) in placed {
                let what = format!("{}: {} at {}", escape(&series.name), number_text(b), number_text(a));
                let _ = writeln!(page, "<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"3\"><title>{what}</title></circle>");
            }
        }
        page.push_str("</g>\n");
    }
    page.push_str("</svg>\n<ul class=\"legend\">\n");
    for (number, series) in plot.series.iter().enumerate() {
        let _ = writeln!(page, "<li class=\"s{}\"><i></i>{}</li>", number % COLOURS, escape(&series.name));
    }
    page.push_str("</ul>\n</figure>\n");
}

/// From values to places on the page.
struct Axis {
    low: f64,
    high: f64,
    log: bool,
    /// Where the lowest and the highest value are drawn.
    start: f64,
    end: f64,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64>, log: bool, start: f64, end: f64) -> Self {
        let drawn = values.filter(|value| value.is_finite() && (!log || *value > 0.0));
        let (low, high) = drawn.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = match (low <= high, log) {
            (false, _) => (1.0, 10.0),
            (true, true) if low == high => (low / 2.0, high * 2.0),
            (true, true) => (low, high),
            // Lines without a break in their axis: zero is on it.
            (true, false) if low == 0.0 && high == 0.0 => (0.0, 1.0),
            (true, false) => (low.min(0.0), high.max(0.0) * 1.05),
        };
        Self { low, high, log, start, end }
    }

    /// Where a value is drawn; `None` if it cannot be.
    fn place(&self, value: f64) -> Option<f64> {
        let scale = |value: f64| if self.log { value.ln() } else { value };
        let share = (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low));
        share.is_finite().then_some(self.start + share * (self.end - self.start))
    }

    /// Round values, where they are drawn.
    fn ticks(&self) -> Vec<(f64, String)> {
        let values = if self.log { self.log_ticks() } else { self.linear_ticks() };
        let placed = values.into_iter().filter_map(|value| Some((self.place(value)?, number_text(value))));
        placed.collect()
    }

    fn linear_ticks(&self) -> Vec<f64> {
        let rough = (self.high - self.low) / 6.0;
        let unit = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * unit).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let first = (self.low / step).ceil() as i64;
        (first..).map(|i| i as f64 * step).take_while(|value| *value <= self.high).take(20).collect()
    }

    /// 1, 2 and 5 times the powers of ten; the powers alone where these are many.
    fn log_ticks(&self) -> Vec<f64> {
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let factors: &[f64] = if last - first > 5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let all = (first..=last).flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)));
        all.filter(|value| (self.low * 0.999..=self.high * 1.001).contains(value)).collect()
    }
}

/// A value in few characters.
fn number_text(value: f64) -> String {
    let size = value.abs();
    match () {
        () if value == 0.0 => "0".to_owned(),
        () if size >= 1e6 => format!("{}M", short(value / 1e6)),
        () if size >= 1e4 => format!("{}k", short(value / 1e3)),
        () if size >= 1e-3 => short(value),
        () => format!("{value:.1e}"),
    }
}

/// At most four digits, without zeros at the end.
fn short(value: f64) -> String {
    let decimals = (3 - value.abs().log10().floor() as i32).clamp(0, 6) as usize;
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_apple_verify::Series;

    #[test]
    fn values_are_short() {
        let texts = [0.0, 0.25, 3.0, 1234.0, 16_384.0, 2_500_000.0, 1e-5].map(number_text);
        assert_eq!(texts, ["0", "0.25", "3", "1234", "16.38k", "2.5M", "1.0e-5"]);
    }

    #[test]
    fn ticks_are_round_and_on_the_axis() {
        let linear = Axis::new([0.0, 103.0].into_iter(), false, 0.0, 100.0);
        assert_eq!(linear.linear_ticks(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        let log = Axis::new([32.0, 512.0].into_iter(), true, 0.0, 100.0);
        assert_eq!(log.log_ticks(), [50.0, 100.0, 200.0, 500.0]);
        assert!((log.place(128.0).unwrap() - 50.0).abs() < 1e-9);
    }

    #[test]
    fn any_points_can_be_drawn() {
        for points in [vec![], vec![(1.0, 1.0)], vec![(0.0, 0.0), (f64::NAN, f64::INFINITY), (-1.0, 1e300)]] {
            for log in [false, true] {
                let series = vec![Series { name: "<s>".into(), points: points.clone() }];
                let plot = Plot { series, log_x: log, log_y: log, ..Plot::default() };
                let mut page = String::new();
                draw(&plot, &mut page);
                assert!(!page.contains("NaN") && !page.contains("inf") && !page.contains("<s>"), "{page}");
            }
        }
    }
}
