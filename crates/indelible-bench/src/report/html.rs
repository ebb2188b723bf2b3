//! A run as one page that needs nothing else: plots by day and by night, tables to copy, the machine and the command.

use super::format;
use super::palette::Palette;
use super::plots::{self, Plot};
use super::summary::{ExperimentSummary, Summary};
use super::table::{Line, Table, Value};
use super::{structure, svg, tables};
use crate::outcome::Run;

const CSS: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// What is neither ink nor palette: by day, by night.
const PLAIN: (&str, &str) = (
    "--wash:#f4f6f8;--line:#cfd5dc;",
    "--wash:#1a2029;--line:#3a434f;",
);

/// Text that a page shows as it is.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            other => out.push(other),
        }
    }
    out
}

/// The page.
#[must_use]
pub fn page(run: &Run) -> String {
    let summary = Summary::of(run);
    let palette = Palette::of(run);
    let sections = summary.experiments.iter().enumerate();
    let sections: String = sections
        .map(|(at, e)| experiment(at, e, &palette))
        .collect();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{} - indelible bench</title>\n<style>\n{}{CSS}</style>\n</head>\n<body>\n\
         {}{}<main>\n{}{sections}{}</main>\n{}<script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        escape(&run.plan.name),
        colours(&palette),
        head(run),
        navigation(&summary),
        across(&summary),
        about(&summary),
        foot(run),
    )
}

fn colours(palette: &Palette) -> String {
    let (day, night) = palette.properties();
    let (day, night) = (day + PLAIN.0, night + PLAIN.1);
    format!(
        ":root{{color-scheme:light;{day}}}\n\
         @media(prefers-color-scheme:dark){{:root:not([data-theme=day]){{color-scheme:dark;{night}}}}}\n\
         :root[data-theme=night]{{color-scheme:dark;{night}}}\n{}\n",
        palette.classes()
    )
}

fn head(run: &Run) -> String {
    let machine = &run.machine;
    let gib = machine.memory_bytes as f64 / f64::from(1 << 30);
    let minutes = run.seconds / 60.0;
    let facts = [
        (
            "Processor",
            format!("{}, {} cores", machine.cpu, machine.cores),
        ),
        ("Memory", format!("{gib:.0} GiB")),
        ("System", machine.system.clone()),
        ("Build", machine.build_and_kernel()),
        ("Date", format!("{} UTC, took {minutes:.0} min", run.date)),
        (
            "Method",
            format!(
                "medians of {} rounds, seed {}",
                run.plan.rounds, run.plan.seed
            ),
        ),
    ];
    let facts =
        facts.map(|(what, is)| format!("<div><dt>{what}</dt><dd>{}</dd></div>", escape(&is)));
    format!(
        "<header>\n<div class=\"eyebrow\">indelible bench</div>\n<h1>{} contestants, side by side: {}</h1>\n\
         <p class=\"muted\">Every round measures every contestant. Shown are medians over the rounds; ± is half the range of the \
         rounds. <b>x</b> is how many times as fast as the first of ours.</p>\n\
         <dl class=\"facts\">{}</dl>\n\
         <div class=\"command\"><pre>{}</pre><button data-copy=\"pre\">copy</button></div>\n</header>\n",
        run.contestants.len(),
        escape(&run.plan.name),
        facts.concat(),
        escape(&run.command),
    )
}

fn navigation(summary: &Summary) -> String {
    let links = summary.experiments.iter().enumerate();
    let link = |(at, e): (usize, &ExperimentSummary)| {
        format!("<a href=\"#e{at}\">{}</a>", escape(&e.plan.name))
    };
    let links: String = links.map(link).collect();
    let across = match tables::across(summary).is_empty() {
        true => "",
        false => "<a href=\"#across\">across</a>",
    };
    format!(
        "<nav><div>{across}{links}<a href=\"#about\">contestants</a><a href=\"#plan\">plan</a><button id=\"theme\">day / night</button></div></nav>\n"
    )
}

fn experiment(at: usize, experiment: &ExperimentSummary, palette: &Palette) -> String {
    let plan = experiment.plan;
    let hard = experiment.facts.map_or(String::new(), |f| {
        let (near, far) = (format::grouped(f.segments_32), format::grouped(f.segments_4096));
        format!(" A straight line wrong by at most 32 places needs {near} pieces to follow the keys, wrong by 4,096 places {far}.")
    });
    let kinds: String = Plot::KINDS
        .iter()
        .map(|&plot| kind(plot, experiment, palette))
        .collect();
    format!(
        "<section class=\"experiment\" id=\"e{at}\">\n<h2>{}</h2>\n<p class=\"muted\">{} records, keys: {}.{hard}</p>\n{}{kinds}{}</section>\n",
        escape(&plan.name),
        format::count(plan.records),
        escape(&plan.data),
        key(experiment),
        structures(experiment),
    )
}

/// What the colours say.
fn key(experiment: &ExperimentSummary) -> String {
    let meaning = |(ink, name): (super::chart::Ink, &str)| {
        format!(
            "<span><i style=\"--c:var(--{})\"></i>{name}</span>",
            ink.name()
        )
    };
    let all: String = svg::meanings(experiment).into_iter().map(meaning).collect();
    format!("<div class=\"key\">{all}</div>\n")
}

/// How to read a plot.
fn reading(plot: Plot) -> &'static str {
    match plot {
        Plot::Main => "",
        Plot::Throughput => "More is better. Whiskers are the noise of the rounds.",
        Plot::Threads => {
            "More is better. Names are at the ends of their lines; point at one to see it alone."
        }
        Plot::Latency => "Less is better. To the right, the slow ones.",
        Plot::OverTime => {
            "Flat is better. Each against its own time and its own mean, which lies at two thirds of the height."
        }
        Plot::Recovery => {
            "Less is better. A process with a loaded map is killed and its files are opened again."
        }
        Plot::Space => "Less is better.",
        Plot::Counts => "Less is better. What writing durably costs, whatever the machine.",
    }
}

fn kind(plot: Plot, experiment: &ExperimentSummary, palette: &Palette) -> String {
    let panels = plots::panels(plot, experiment);
    let figures = panels
        .iter()
        .map(|p| format!("<figure>{}</figure>\n", svg::inline(p, palette)));
    let figures: String = figures.collect();
    let table = match plot {
        Plot::Throughput => Some((tables::throughput(experiment), true)),
        Plot::Latency => Some((tables::latency(experiment, true), false)),
        Plot::Recovery => Some((tables::recovery(experiment), false)),
        Plot::Space => Some((tables::space(experiment), false)),
        Plot::Counts => Some((tables::counts(experiment, true), false)),
        Plot::Main | Plot::Threads | Plot::OverTime => None,
    };
    let table = table.filter(|(table, _)| !table.is_empty());
    if panels.is_empty() && table.is_none() {
        return String::new();
    }
    let table = table.map_or(String::new(), |(table, open)| folded(&table, open));
    format!(
        "<div class=\"kind\"><header><h3>{}</h3><p>{}</p></header>\n<div class=\"panels\">\n{figures}</div>\n{table}</div>\n",
        plot.title(),
        reading(plot),
    )
}

/// What ours are made of, in tables only.
fn structures(experiment: &ExperimentSummary) -> String {
    let tables = [
        structure::after_load(experiment),
        structure::changes(experiment),
    ];
    let shown = tables.iter().filter(|table| !table.is_empty());
    let tables: String = shown.map(|table| folded(table, true)).collect();
    if tables.is_empty() {
        return String::new();
    }
    format!(
        "<div class=\"kind\"><header><h3>Structure</h3><p>What ours are made of, and what changed.</p></header>\n{tables}</div>\n"
    )
}

/// A table with buttons to copy it.
fn folded(table: &Table, open: bool) -> String {
    let open = if open { " open" } else { "" };
    format!(
        "<details class=\"table\"{open}><summary>Table: {}</summary>\n{}</details>\n",
        escape(&table.note),
        scrolled(table)
    )
}

fn scrolled(table: &Table) -> String {
    let lines: String = table.lines.iter().map(|line| row(table, line)).collect();
    format!(
        "<div class=\"scroll\"><table>\n<thead>{}</thead>\n<tbody>\n{lines}</tbody>\n</table></div>\n\
         <div class=\"copy\">copy as <button data-copy=\"tsv\">TSV</button><button data-copy=\"md\">Markdown</button></div>\n",
        heads(table)
    )
}

fn heads(table: &Table) -> String {
    let corner = escape(&table.corner);
    let cells = table.head.iter().enumerate();
    let cells: String = cells
        .map(|(at, h)| format!("<th{}>{}</th>", text_class(table, at), escape(h)))
        .collect();
    if table.groups.is_empty() {
        return format!("<tr><th>{corner}</th>{cells}</tr>");
    }
    let group = |(label, count): &(String, usize)| {
        format!(
            "<th class=\"group\" colspan=\"{count}\">{}</th>",
            escape(label)
        )
    };
    let groups: String = table.groups.iter().map(group).collect();
    format!("<tr><th></th>{groups}</tr><tr><th>{corner}</th>{cells}</tr>")
}

/// Columns of words are at the left.
fn text_class(table: &Table, at: usize) -> &'static str {
    let mut values = table.lines.iter().filter_map(|l| l.values.get(at));
    let word = |v: &Value| v.main.chars().next().is_some_and(char::is_alphabetic);
    if values.any(word) {
        " class=\"text\""
    } else {
        ""
    }
}

fn row(table: &Table, line: &Line) -> String {
    let class = if line.is_ours { " class=\"ours\"" } else { "" };
    let name = escape(&line.name);
    let remark = line.remark.as_deref().map(escape);
    if let Some(remark) = remark
        .as_ref()
        .filter(|_| line.values.iter().all(|v| v.main.is_empty()))
    {
        let all = table.head.len();
        return format!(
            "<tr{class}><th>{name}</th><td class=\"remark\" colspan=\"{all}\">{remark}</td></tr>\n"
        );
    }
    let mut starts = vec![0];
    for (_, count) in &table.groups {
        starts.push(starts.last().unwrap_or(&0) + count);
    }
    let cells = line.values.iter().enumerate();
    let cells: String = cells
        .map(|(at, v)| place(table, at, v, starts.contains(&at)))
        .collect();
    let title = remark.map_or(String::new(), |r| format!(" title=\"{r}\""));
    let mark = if title.is_empty() { "" } else { " *" };
    format!("<tr{class}><th{title}>{name}{mark}</th>{cells}</tr>\n")
}

fn place(table: &Table, at: usize, value: &Value, first: bool) -> String {
    let side = value.side.split_whitespace().collect::<Vec<_>>().join("  ");
    let side = match side.is_empty() {
        true => String::new(),
        false => format!("<small>{}</small>", escape(&side)),
    };
    let main = escape(&value.main);
    let first = if first && !table.groups.is_empty() {
        " first"
    } else {
        ""
    };
    let Some(times) = value.times.filter(|t| t.is_finite() && *t > 0.0) else {
        let class = text_class(table, at);
        let class = if class.is_empty() {
            format!(" class=\"{}\"", first.trim())
        } else {
            class.into()
        };
        return format!("<td{class}><span>{main}</span>{side}</td>");
    };
    let much = (times.log2().abs() * 8.0).min(30.0);
    let tint = if times > 1.0 { "power" } else { "ours" };
    format!(
        "<td class=\"tint{first}\" style=\"--tint:var(--{tint});--much:{much:.0}%\"><span>{main}</span>{side}</td>"
    )
}

/// Ours in all experiments.
fn across(summary: &Summary) -> String {
    let table = tables::across(summary);
    if table.is_empty() {
        return String::new();
    }
    format!(
        "<section class=\"experiment\" id=\"across\">\n<h2>{}</h2>\n<p class=\"muted\">{}</p>\n<div class=\"table\">{}</div>\n</section>\n",
        escape(&table.title),
        escape(&table.note),
        scrolled(&table)
    )
}

/// The contestants, the keys, what the facts of structures mean, the plan.
fn about(summary: &Summary) -> String {
    let line = |c: &crate::outcome::Described| Line {
        name: c.name.clone(),
        is_ours: c.is_ours,
        values: vec![Value::plain(&c.survives), Value::plain(&c.about)],
        remark: None,
    };
    let contestants = Table {
        corner: "contestant".into(),
        head: vec!["its writes survive".into(), "what it is".into()],
        lines: summary.run.contestants.iter().map(line).collect(),
        ..Table::default()
    };
    let keys = tables::data(summary);
    let plan = serde_json::to_string_pretty(&summary.run.plan).unwrap_or_default();
    let part = |title: &str, table: &Table| match table.is_empty() {
        true => String::new(),
        false => format!(
            "<div class=\"kind\"><header><h3>{title}</h3><p>{}</p></header><div class=\"table\">{}</div></div>\n",
            escape(&table.note),
            scrolled(table)
        ),
    };
    format!(
        "<section class=\"experiment\" id=\"about\">\n<h2>What was measured</h2>\n{}{}{}\
         <div class=\"kind\" id=\"plan\"><header><h3>Plan</h3><p>Everything that was asked for.</p></header>\
         <details><summary>JSON</summary><div class=\"command\"><pre class=\"long\">{}</pre><button data-copy=\"pre\">copy</button></div></details></div>\n</section>\n",
        part("Contestants", &contestants),
        part("Keys", &keys),
        part("Facts", &structure::meanings(summary)),
        escape(&plan),
    )
}

fn foot(run: &Run) -> String {
    let probes: Vec<f64> = run
        .outcomes
        .iter()
        .map(|o| o.probe.dependent_ns)
        .filter(|ns| *ns > 0.0)
        .collect();
    let mood = super::summary::Figure::of(&probes).map_or(String::new(), |f| {
        let noise = format::noise(f.noise);
        format!(" A dependent read of a random line of memory took {:.0} ns {noise} in the course of the run.", f.median)
    });
    format!(
        "<footer>Where a place is tinted, vermilion says that ours is faster and violet that the peer is; the stronger, the further apart.{mood} \
         Format {}.</footer>\n",
        run.format
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn a_page_needs_nothing_else_and_escapes_everything() {
        let mut run = sample::run(1, 3);
        run.command = "bench <script>alert('x')</script> & \"more\"".into();
        sample::rename(&mut run, |name| format!("{name}<b>"));
        let page = page(&run);
        for outside in ["http://", "https://", "<link", "src=", "@import", "url("] {
            let found = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!found.contains(outside), "{outside} in the page");
        }
        assert_eq!(page.matches("<script>").count(), 1);
        assert!(!page.contains("<b>,") && !page.contains("indelible<b>") && !page.contains("#0B"));
        assert!(page.contains("access out of bounds"));
    }

    #[test]
    fn sections_without_data_are_left_out() {
        let mut run = sample::run(1, 3);
        for outcome in &mut run.outcomes {
            outcome.recovery = None;
            outcome.space = None;
            for measured in &mut outcome.phases {
                measured.latency = None;
            }
        }
        let page = page(&run);
        assert!(page.contains("<h3>Throughput</h3>"));
        for title in ["After kill -9", "Space", "Latency"] {
            assert!(!page.contains(&format!("<h3>{title}</h3>")), "{title}");
        }
    }

    #[test]
    fn an_empty_run_is_a_page_still() {
        let mut run = sample::run(1, 1);
        run.outcomes.clear();
        assert!(page(&run).ends_with("</html>\n"));
        run.contestants.clear();
        run.plan.experiments.clear();
        assert!(page(&run).ends_with("</html>\n"));
    }
}
