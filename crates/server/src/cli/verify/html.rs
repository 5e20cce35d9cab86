//! The report as a page: one file that asks nobody for anything, readable in light and in dark.

use std::fmt::Write;

use vllm_apple_verify::sections::human;
use vllm_apple_verify::{Outcome, Report, Section};

use super::svg;
use super::table::{counts, word};

const STYLE: &str = include_str!("report.css");

/// All of it.
pub fn of(report: &Report) -> String {
    let model = report.facts.iter().find(|(name, _)| name == "model").map_or("", |(_, model)| model.as_str());
    let title = format!("Validation report: {}", escape(model));
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    let failed = report.failures().count();
    let class = if failed == 0 { "pass" } else { "fail" };
    let _ = writeln!(page, "<p class=\"verdict {class}\">{}</p>", counts(report.sections.iter()));
    contents(report, &mut page);
    page.push_str("<table class=\"facts\">\n");
    for (name, fact) in &report.facts {
        let _ = writeln!(page, "<tr><th scope=\"row\">{}</th><td>{}</td></tr>", escape(name), escape(fact));
    }
    page.push_str("</table>\n");
    report.sections.iter().for_each(|part| section(part, &mut page));
    page.push_str("</body>\n</html>\n");
    page
}

fn contents(report: &Report, page: &mut String) {
    page.push_str("<nav>\n<ul>\n");
    for section in &report.sections {
        let (name, title) = (escape(&section.name), escape(&section.title));
        let _ = writeln!(page, "<li><a href=\"#{name}\">{title}</a>: {}</li>", counts([section].into_iter()));
    }
    page.push_str("</ul>\n</nav>\n");
}

fn section(section: &Section, page: &mut String) {
    let took = human(std::time::Duration::from_secs_f64(section.seconds));
    let (name, title, about) = (escape(&section.name), escape(&section.title), escape(&section.about));
    let _ =
        writeln!(page, "<section id=\"{name}\">\n<h2>{title}</h2>\n<p>{about} <span class=\"took\">{took}</span></p>");
    page.push_str("<div class=\"wide\"><table>\n<thead><tr><th></th><th>what</th><th>found</th><th>expected</th></tr></thead>\n<tbody>\n");
    for line in &section.lines {
        let class = match line.outcome {
            Outcome::Pass => "pass",
            Outcome::Fail => "fail",
            Outcome::Figure => "figure",
            Outcome::Skipped => "skipped",
        };
        let _ = writeln!(
            page,
            "<tr class=\"{class}\"><td class=\"outcome\">{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            word(line.outcome),
            escape(&line.what),
            escape(&line.found),
            escape(&line.expected)
        );
    }
    page.push_str("</tbody>\n</table></div>\n");
    for plot in section.plots.iter().filter(|plot| plot.series.iter().any(|series| !series.points.is_empty())) {
        svg::draw(plot, page);
    }
    page.push_str("</section>\n");
}

/// A text between tags or in an attribute.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
