//! The plot: the time per item of each contender, on a logarithmic scale.

use std::fmt::Write;

use crate::measure::Measured;

const LEFT: f64 = 190.0;
const WIDTH: f64 = 620.0;
const LINE: f64 = 17.0;
const RIGHT: f64 = 90.0;

/// Renders the groups as SVG, with a line for each contender.
#[must_use]
pub fn render(groups: &[Measured]) -> String {
    let times =
        || groups.iter().flat_map(|group| group.members.iter().map(super::measure::Member::ns));
    let min = times().fold(f64::INFINITY, f64::min).log10().floor();
    let max = times().fold(1.0, f64::max).log10().ceil().max(min + 1.0);
    let x = |ns: f64| LEFT + (ns.log10() - min) / (max - min) * WIDTH;

    let mut body = String::new();
    let mut y = 48.0;
    for group in groups {
        let _ =
            writeln!(body, r#"<text x="8" y="{y:.0}" class="head">{}</text>"#, escape(&group.name));
        y += LINE;
        for member in &group.members {
            let (ns, class) = (member.ns(), class(member.name));
            let (at, middle) = (x(ns), y - 4.0);
            let _ = writeln!(
                body,
                r#"<text x="{:.0}" y="{y:.0}" class="name {class}">{}</text><path d="M{LEFT} {middle:.0}H{at:.1}" class="{class}"/><circle cx="{at:.1}" cy="{middle:.0}" r="4" class="{class}"/><text x="{:.1}" y="{y:.0}" class="{class}">{}</text>"#,
                LEFT - 8.0,
                escape(member.name),
                at + 9.0,
                nanoseconds(ns),
            );
            y += LINE;
        }
        y += LINE / 2.0;
    }

    let mut grid = String::new();
    let (mut power, bottom) = (min, y - LINE);
    while power <= max {
        let (ns, at) = (10f64.powf(power), x(10f64.powf(power)));
        let _ = writeln!(
            grid,
            r#"<path d="M{at:.1} 28V{bottom:.0}" class="grid"/><text x="{at:.1}" y="22" class="tick">{}</text>"#,
            nanoseconds(ns),
        );
        power += 1.0;
    }
    let (width, height) = (LEFT + WIDTH + RIGHT, y);
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" role="img" aria-label="What an item costs, in nanoseconds, logarithmic; less is better">
<style>
svg {{ background: #fff; font: 12px system-ui, sans-serif; fill: #57606a }}
.head {{ font-weight: 600; fill: #1f2328 }}
.name {{ text-anchor: end }} .tick {{ text-anchor: middle; font-size: 11px }}
path {{ stroke: #c3c9d0; stroke-width: 2; fill: none }} circle {{ fill: #8c959f }}
path.grid {{ stroke: #eaeef2; stroke-width: 1 }}
path.ours {{ stroke: #0969da }} circle.ours, text.ours {{ fill: #0969da }} text.ours {{ font-weight: 600 }}
circle.limit {{ fill: #fff; stroke: #8c959f; stroke-width: 2 }}
</style>
<text x="8" y="22">time per item</text>
{grid}{body}</svg>
"#
    )
}

fn class(name: &str) -> &'static str {
    match name {
        name if name.starts_with("demux") => "ours",
        name if name.starts_with("bare") => "limit",
        _ => "rival",
    }
}

/// Formats a time with its unit and its significant digits.
#[must_use]
pub fn nanoseconds(ns: f64) -> String {
    match ns {
        ns if ns < 9.95 => format!("{ns:.1} ns"),
        ns if ns < 9_999.5 => format!("{ns:.0} ns"),
        ns if ns < 999_500.0 => format!("{:.0} µs", ns / 1e3),
        ns if ns < 9.95e6 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.0} ms", ns / 1e6),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
