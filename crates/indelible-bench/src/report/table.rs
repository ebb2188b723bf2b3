//! A table, once: for a terminal in text, for a browser in HTML.

use super::format::{cut, wrap};

/// Columns that a terminal has.
pub const WIDTH: usize = 100;

/// The widest first column.
const NAME: usize = 24;

/// What stands in a place of a table.
#[derive(Clone, Debug, Default)]
pub struct Value {
    /// The figure.
    pub main: String,
    /// What belongs to it, such as its noise.
    pub side: String,
    /// How many times as much as ours; the page tints the place with it.
    pub times: Option<f64>,
}

impl Value {
    /// A figure without more.
    pub fn plain(main: impl Into<String>) -> Self {
        Self {
            main: main.into(),
            ..Self::default()
        }
    }
}

/// A line of a table.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// In the first column.
    pub name: String,
    /// Whether it is one of ours.
    pub is_ours: bool,
    /// In the other columns.
    pub values: Vec<Value>,
    /// Why there is nothing, or not all.
    pub remark: Option<String>,
}

/// Lines under a head.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// What is shown.
    pub title: String,
    /// How to read it.
    pub note: String,
    /// Above the first column.
    pub corner: String,
    /// Above the other columns.
    pub head: Vec<String>,
    /// Above neighbouring columns together, with how many they are; empty if there are no groups.
    pub groups: Vec<(String, usize)>,
    /// In the order of the plan.
    pub lines: Vec<Line>,
}

impl Table {
    /// Whether there is nothing to show.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let silent = |l: &Line| l.remark.is_none() && l.values.iter().all(|v| v.main.is_empty());
        self.head.is_empty() || self.lines.iter().all(silent)
    }

    /// As text of at most [`WIDTH`] columns, in several pieces if it is wider. A line is left out of pieces where it has no values, if
    /// it has any elsewhere.
    #[must_use]
    pub fn text(&self) -> String {
        let names = self.lines.iter().map(|l| l.name.chars().count());
        let name = names
            .chain([self.corner.chars().count()])
            .max()
            .unwrap_or(0)
            .min(NAME);
        let mut columns: Vec<TextColumn> = (0..self.head.len()).map(|at| self.column(at)).collect();
        let groups = self.text_groups(&mut columns, WIDTH - name);
        let mut out = wrap(&self.title, WIDTH).join("\n") + "\n";
        if !self.note.is_empty() {
            out += &(wrap(&self.note, WIDTH).join("\n") + "\n");
        }
        for piece in pieces(&groups, WIDTH - name) {
            out.push('\n');
            self.piece(&mut out, name, &columns, piece);
        }
        self.remarks(&mut out);
        out
    }

    fn column(&self, at: usize) -> TextColumn {
        let values = || self.lines.iter().filter_map(|l| l.values.get(at));
        let widest = |part: fn(&Value) -> &String| {
            let widths = values().map(|v| part(v).chars().count());
            widths.max().unwrap_or(0)
        };
        let (main, side) = (widest(|v| &v.main), widest(|v| &v.side));
        let gap = usize::from(side > 0);
        let head = cut(&self.head[at], LIMIT);
        TextColumn {
            width: (main + gap + side).max(head.chars().count()).min(LIMIT),
            main,
            side,
            head,
        }
    }

    /// Columns of a group are not parted, if there is room for all of them. Each group is as wide as its label.
    fn text_groups(&self, columns: &mut [TextColumn], room: usize) -> Vec<TextGroup> {
        let alone = self.head.iter().map(|_| (String::new(), 1)).collect();
        let groups = if self.groups.is_empty() {
            &alone
        } else {
            &self.groups
        };
        let mut out: Vec<TextGroup> = Vec::new();
        let mut start = 0;
        for (label, count) in groups {
            let label = cut(label, LIMIT);
            for (at, column) in columns.iter().enumerate().skip(start).take(*count) {
                let width = column.width + 2;
                match out.last_mut() {
                    Some(last) if at > start && last.width + width <= room => {
                        last.columns.end += 1;
                        last.width += width;
                    }
                    _ => out.push(TextGroup {
                        label: label.clone(),
                        columns: at..at + 1,
                        width,
                    }),
                }
            }
            start += count;
        }
        for group in &mut out {
            let missing = (group.label.chars().count() + 2).saturating_sub(group.width);
            columns[group.columns.start].width += missing;
            group.width += missing;
        }
        out
    }

    fn piece(&self, out: &mut String, name: usize, columns: &[TextColumn], groups: &[TextGroup]) {
        let shown = || groups.iter().flat_map(|g| &columns[g.columns.clone()]);
        let mut labels = String::new();
        for group in groups {
            labels += &format!("  {:^width$}", group.label, width = group.width - 2);
        }
        let mut head = String::new();
        for column in shown() {
            head += &format!("  {:>width$}", column.head, width = column.width);
        }
        let above = [labels, head]
            .into_iter()
            .filter(|line| !line.trim().is_empty());
        let above: Vec<String> = above.collect();
        for (at, line) in above.iter().enumerate() {
            let corner = if at + 1 == above.len() {
                &self.corner
            } else {
                ""
            };
            push(out, &format!("{:name$}{line}", cut(corner, name)));
        }
        for row in &self.lines {
            let mut line = format!("{:name$}", cut(&row.name, name));
            let is_silent = |at: usize| row.values.get(at).is_none_or(|v| v.main.is_empty());
            let says_nothing = (0..self.head.len()).all(is_silent);
            // A line that says something elsewhere.
            if !says_nothing && groups.iter().all(|g| g.columns.clone().all(is_silent)) {
                continue;
            }
            if row.remark.is_some() && says_nothing {
                line += "  failed, see below";
            } else {
                let places = groups.iter().flat_map(|g| g.columns.clone());
                places.for_each(|at| line += &columns[at].place(row.values.get(at)));
            }
            push(out, &line);
        }
    }

    fn remarks(&self, out: &mut String) {
        for line in &self.lines {
            if let Some(remark) = &line.remark {
                let text = format!("{}: {remark}", line.name);
                *out += &(wrap(&text, WIDTH).join("\n") + "\n");
            }
        }
    }
}

fn push(out: &mut String, line: &str) {
    out.push_str(line.trim_end());
    out.push('\n');
}

/// The widest column.
const LIMIT: usize = WIDTH - NAME - 2;

/// Columns that stay together.
struct TextGroup {
    label: String,
    columns: std::ops::Range<usize>,
    width: usize,
}

/// How wide the parts of a column are.
struct TextColumn {
    width: usize,
    main: usize,
    side: usize,
    head: String,
}

impl TextColumn {
    fn place(&self, value: Option<&Value>) -> String {
        let none = Value::default();
        let value = value.unwrap_or(&none);
        let mut text = format!("{:>main$}", value.main, main = self.main);
        if self.side > 0 {
            text += &format!(" {:>side$}", value.side, side = self.side);
        }
        format!("  {:>width$}", cut(&text, self.width), width = self.width)
    }
}

/// Groups that fit beside each other.
fn pieces(groups: &[TextGroup], room: usize) -> Vec<&[TextGroup]> {
    let mut pieces = Vec::new();
    let (mut start, mut used) = (0, 0);
    for (at, group) in groups.iter().enumerate() {
        if at > start && used + group.width > room {
            pieces.push(&groups[start..at]);
            (start, used) = (at, 0);
        }
        used += group.width;
    }
    pieces.push(&groups[start..]);
    pieces
}
