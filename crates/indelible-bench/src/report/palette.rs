//! The colours, by day and by night. Ours is vermilion; peers are told apart by hues that the colour-blind can tell apart from it.

use super::chart::Ink;
use crate::outcome::Run;

/// Ink, by day, by night.
const FIXED: [(Ink, &str, &str); 8] = [
    (Ink::Text, "#1c2128", "#e6e9ee"),
    (Ink::Muted, "#626b77", "#9aa4b2"),
    (Ink::Grid, "#e3e7ec", "#2b323c"),
    (Ink::Paper, "#ffffff", "#12161c"),
    (Ink::Ours, "#d1460f", "#ff7f45"),
    (Ink::Nothing, "#a9b1bb", "#646d79"),
    (Ink::Kill, "#4a9c97", "#3f8f8a"),
    (Ink::Power, "#8b83cc", "#8078c4"),
];

/// Enough for both indexes with each promise, neighbours far apart.
const OURS: [(&str, &str); 7] = [
    ("#d1460f", "#ff7f45"),
    ("#b3124f", "#ff6d94"),
    ("#e8893f", "#ffb580"),
    ("#9c3208", "#d9602a"),
    ("#e06a8c", "#ffabc0"),
    ("#c98a5a", "#e0b08c"),
    ("#7d0f2e", "#c94a6c"),
];

const PEERS: [(&str, &str); 11] = [
    ("#3b3aa0", "#9a97f0"),
    ("#3f9fd0", "#6cc3ee"),
    ("#2f9e8f", "#55c9b8"),
    ("#2c7a3f", "#63bd78"),
    ("#8a8a2a", "#c0bf5a"),
    ("#b99a2e", "#e0c665"),
    ("#a5479b", "#d987cf"),
    ("#7a2250", "#d0709f"),
    ("#6b7280", "#a3abb8"),
    ("#7b5b3a", "#c09a72"),
    ("#5a7fa6", "#93b4d8"),
];

/// The colours of a run.
pub struct Palette {
    contestants: Vec<(&'static str, &'static str)>,
}

impl Palette {
    /// A colour for each contestant.
    #[must_use]
    pub fn of(run: &Run) -> Self {
        let (mut ours, mut peers) = (OURS.iter().cycle(), PEERS.iter().cycle());
        let next = |is_ours| if is_ours { ours.next() } else { peers.next() };
        let colours = run.contestants.iter().map(|c| c.is_ours).map(next);
        Self {
            contestants: colours.map(|c| *c.expect("a cycle never ends")).collect(),
        }
    }

    fn both(&self, ink: Ink) -> (&'static str, &'static str) {
        match ink {
            Ink::Contestant(place) => self.contestants.get(place).copied().unwrap_or(PEERS[8]),
            _ => {
                let fixed = FIXED.iter().find(|(i, _, _)| *i == ink);
                fixed.map_or(PEERS[8], |&(_, day, night)| (day, night))
            }
        }
    }

    /// The colour by day.
    #[must_use]
    pub fn day(&self, ink: Ink) -> String {
        self.both(ink).0.into()
    }

    fn inks(&self) -> impl Iterator<Item = Ink> + '_ {
        let fixed = FIXED.iter().map(|f| f.0);
        fixed.chain((0..self.contestants.len()).map(Ink::Contestant))
    }

    /// Custom properties with all colours: by day, by night.
    #[must_use]
    pub fn properties(&self) -> (String, String) {
        let mut css = (String::new(), String::new());
        for ink in self.inks() {
            let (day, night) = self.both(ink);
            css.0 += &format!("--{}:{day};", ink.name());
            css.1 += &format!("--{}:{night};", ink.name());
        }
        css
    }

    /// What the classes of [`super::chart::paint`] mean.
    #[must_use]
    pub fn classes(&self) -> String {
        let class = |ink: Ink| {
            let name = ink.name();
            format!(".f-{name}{{fill:var(--{name})}}.s-{name}{{stroke:var(--{name})}}")
        };
        self.inks().map(class).collect()
    }
}
