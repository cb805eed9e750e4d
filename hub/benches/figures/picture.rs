//! Draws delays over a load, on logarithmic scales: the median and what 99 % do not exceed.

use std::fmt::Write;

/// What a program has reached.
pub(crate) struct Series {
    pub(crate) name: &'static str,
    pub(crate) points: Vec<Point>,
}

/// The delays at a load, in milliseconds.
pub(crate) struct Point {
    pub(crate) load: u64,
    pub(crate) median: f64,
    pub(crate) most: f64,
}

const LEFT: f64 = 64.0;
const TOP: f64 = 56.0;
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 260.0;

/// The colours of the series.
const CLASSES: [&str; 3] = ["a", "b", "c"];

/// Renders a picture of the series, which have the same loads.
pub(crate) fn render(title: &str, of_load: &str, series: &[Series]) -> String {
    let points = || series.iter().flat_map(|series| &series.points);
    let least = points().map(|point| point.median).fold(f64::INFINITY, f64::min);
    let most = points().map(|point| point.most).fold(0.0, f64::max);
    let (low, high) = (least.log10().floor(), most.log10().ceil());
    let few = points().map(|point| point.load).min().unwrap_or(1) as f64;
    let many = points().map(|point| point.load).max().unwrap_or(1) as f64;
    let x = |load: u64| LEFT + (load as f64 / few).log10() / (many / few).log10() * WIDTH;
    let y = |ms: f64| TOP + (high - ms.log10()) / (high - low) * HEIGHT;

    let mut body = String::new();
    let mut power = low;
    while power <= high {
        let at = y(10_f64.powf(power));
        line(
            &mut body,
            &format!(
                r#"<path d="M{LEFT} {at:.1}H{:.1}" class="grid"/><text x="{:.1}" y="{:.1}" class="end">{}</text>"#,
                LEFT + WIDTH,
                LEFT - 8.0,
                at + 4.0,
                name_of_power(power),
            ),
        );
        power += 1.0;
    }
    let bottom = TOP + HEIGHT;
    for point in series.first().iter().flat_map(|series| &series.points) {
        let (at, load) = (x(point.load), point.load);
        line(
            &mut body,
            &format!(r#"<text x="{at:.1}" y="{:.1}" class="middle">{load}</text>"#, bottom + 20.0),
        );
    }
    line(
        &mut body,
        &format!(
            r#"<text x="{:.1}" y="{:.1}" class="middle">{of_load}</text>"#,
            LEFT + WIDTH / 2.0,
            bottom + 42.0,
        ),
    );
    for (index, (series, class)) in series.iter().zip(CLASSES).enumerate() {
        let path = |value: fn(&Point) -> f64| {
            let places = series.points.iter();
            let places = places.map(|point| format!("{:.1} {:.1}", x(point.load), y(value(point))));
            format!("M{}", places.collect::<Vec<_>>().join("L"))
        };
        let median = path(|point| point.median);
        let most = path(|point| point.most);
        line(&mut body, &format!(r#"<path d="{most}" class="{class} most"/>"#));
        line(&mut body, &format!(r#"<path d="{median}" class="{class}"/>"#));
        for point in &series.points {
            let (at, height) = (x(point.load), y(point.median));
            line(
                &mut body,
                &format!(r#"<circle cx="{at:.1}" cy="{height:.1}" r="4" class="{class}"/>"#),
            );
        }
        let at = LEFT + 190.0 * index as f64;
        line(
            &mut body,
            &format!(
                r#"<path d="M{at:.1} 39H{:.1}" class="{class}"/><text x="{:.1}" y="43">{}</text>"#,
                at + 24.0,
                at + 31.0,
                series.name,
            ),
        );
    }
    let (width, height) = (LEFT + WIDTH + 24.0, bottom + 56.0);
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" role="img" aria-label="{title}; logarithmic, less is better">
<style>
svg {{ background: #fff; font: 13px system-ui, sans-serif; fill: #1f2328 }}
.middle {{ text-anchor: middle }} .end {{ text-anchor: end }}
path {{ stroke-width: 2; fill: none }} .grid {{ stroke: #d1d9e0; stroke-width: 1 }} .most {{ stroke-dasharray: 5 4 }}
path.a {{ stroke: #0969da }} path.b {{ stroke: #bc4c00 }} path.c {{ stroke: #8250df }}
circle.a {{ fill: #0969da }} circle.b {{ fill: #bc4c00 }} circle.c {{ fill: #8250df }}
@media (prefers-color-scheme: dark) {{
  svg {{ background: #0d1117; fill: #e6edf3 }} .grid {{ stroke: #3d444d }}
  path.a {{ stroke: #4493f8 }} path.b {{ stroke: #db6d28 }} path.c {{ stroke: #ab7df8 }}
  circle.a {{ fill: #4493f8 }} circle.b {{ fill: #db6d28 }} circle.c {{ fill: #ab7df8 }}
}}
</style>
<text x="8" y="20">{title}: median, and dashed 99 %</text>
{body}</svg>
"#
    )
}

fn line(body: &mut String, text: &str) {
    writeln!(body, "{text}").expect("a string has room");
}

/// Names a power of ten of milliseconds.
fn name_of_power(power: f64) -> String {
    if power < 0.0 {
        format!("{:.0} µs", 10_f64.powf(power + 3.0))
    } else if power < 3.0 {
        format!("{:.0} ms", 10_f64.powf(power))
    } else {
        format!("{:.0} s", 10_f64.powf(power - 3.0))
    }
}
