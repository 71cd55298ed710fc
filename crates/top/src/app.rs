//! The state of the screen: the last samples, and the choices of the user.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::metrics::Metrics;
use crate::options::INTERVALS;
use crate::poll::{Extra, Sample, View};
use crate::poller::{Request, Update};

/// Most intervals kept for the curves.
const HISTORY_MAX: usize = 600;

/// Intervals that `+` and `-` step through, in milliseconds.
const STEPS_MS: &[u64] = &[100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000];

/// Lines of a page.
const PAGE: usize = 10;

/// Values of past intervals, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) rates: VecDeque<Option<f64>>,
    pub(crate) p99_us: VecDeque<Option<f64>>,
    pub(crate) memory: VecDeque<Option<f64>>,
}

impl History {
    fn push(&mut self, metrics: &Metrics) {
        let values = [metrics.commands_per_s, metrics.p99_us, metrics.used];
        for (curve, value) in [&mut self.rates, &mut self.p99_us, &mut self.memory].into_iter().zip(values) {
            if curve.len() == HISTORY_MAX {
                curve.pop_front();
            }
            curve.push_back(value);
        }
    }
}

/// Orders of the table of commands; the names are the titles of its columns.
pub(crate) const COMMAND_ORDERS: &[&str] = &["share", "calls/s", "per call", "p99", "failed/s", "command"];

/// Orders of the table of clients.
pub(crate) const CLIENT_ORDERS: &[&str] = &["memory", "age", "idle", "output", "command", "address"];

/// State of a lost connection.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) reason: String,
    pub(crate) retry: Instant,
}

/// Effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Nothing,
    Redraw,
    Quit,
}

#[derive(Debug)]
pub(crate) struct App {
    pub(crate) address: String,
    pub(crate) request: Request,
    pub(crate) sample: Option<Sample>,
    pub(crate) metrics: Metrics,
    pub(crate) history: History,
    pub(crate) slow_log: Option<Extra>,
    pub(crate) clients: Option<Extra>,
    pub(crate) findings: Option<Extra>,
    /// The forbidden command of a view that was just opened.
    pub(crate) forbidden: Option<String>,
    pub(crate) lost: Option<Lost>,
    pub(crate) is_help_open: bool,
    /// A single frame without keys and curves.
    pub(crate) is_once: bool,
    /// Lines of the list that was drawn last, and the lines that fit.
    pub(crate) lines: Option<(usize, usize)>,
    /// First line shown of each view.
    scrolls: BTreeMap<View, usize>,
    /// Number of the order of each view.
    orders: BTreeMap<View, usize>,
}

impl App {
    pub(crate) fn new(address: String, interval: Duration, is_once: bool) -> App {
        App {
            address,
            request: Request { view: View::Overview, interval, is_paused: false },
            sample: None,
            metrics: Metrics::default(),
            history: History::default(),
            slow_log: None,
            clients: None,
            findings: None,
            forbidden: None,
            lost: None,
            is_help_open: false,
            is_once,
            lines: None,
            scrolls: BTreeMap::new(),
            orders: BTreeMap::new(),
        }
    }

    pub(crate) fn update(&mut self, update: Update) {
        match update {
            Update::Sample(sample) => self.add(*sample),
            Update::Extra(Ok(extra)) => self.keep(extra),
            Update::Extra(Err(forbidden)) => self.forbidden = Some(forbidden),
            Update::Lost { reason, retry } => self.lost = Some(Lost { reason, retry }),
        }
    }

    fn add(&mut self, mut sample: Sample) {
        self.metrics = Metrics::between(self.sample.as_ref(), &sample);
        if self.sample.is_some() {
            self.history.push(&self.metrics);
        }
        if let Some(extra) = sample.extra.take() {
            self.keep(extra);
        }
        self.lost = None;
        self.sample = Some(sample);
    }

    fn keep(&mut self, extra: Extra) {
        let place = match extra {
            Extra::SlowLog(_) => &mut self.slow_log,
            Extra::Clients(_) => &mut self.clients,
            Extra::Findings(_) => &mut self.findings,
        };
        *place = Some(extra);
    }

    /// Returns the commands that the user may not run, and that this view or every view needs.
    pub(crate) fn forbidden(&self) -> Vec<&str> {
        let of_sample = self.sample.iter().flat_map(|sample| sample.forbidden.iter());
        let mut names: Vec<&str> = of_sample.chain(&self.forbidden).map(String::as_str).collect();
        names.dedup();
        names
    }

    pub(crate) fn scroll(&self) -> usize {
        self.scrolls.get(&self.request.view).copied().unwrap_or(0)
    }

    /// Bounds the first line shown: the last lines fill the screen.
    pub(crate) fn bound_scroll(&mut self, lines: usize, height: usize) {
        self.lines = Some((lines, height));
        let most = lines.saturating_sub(height);
        self.scrolls.entry(self.request.view).and_modify(|scroll| *scroll = (*scroll).min(most));
    }

    /// Returns the order of a view's table.
    pub(crate) fn order(&self, view: View) -> &'static str {
        let orders = orders_of(view);
        let chosen = self.orders.get(&view).copied().unwrap_or(0);
        orders.get(chosen % orders.len().max(1)).copied().unwrap_or("")
    }

    pub(crate) fn key(&mut self, key: KeyEvent) -> Effect {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return Effect::Quit,
            KeyCode::Char('q') => return Effect::Quit,
            KeyCode::Char('?') => self.is_help_open = !self.is_help_open,
            KeyCode::Esc => self.is_help_open = false,
            KeyCode::Char('p' | ' ') => self.request.is_paused = !self.request.is_paused,
            KeyCode::Char('s') => *self.orders.entry(self.request.view).or_default() += 1,
            KeyCode::Char('+' | '=') => self.step(1),
            KeyCode::Char('-') => self.step(-1),
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(View::ALL.len() - 1),
            KeyCode::Char(digit @ '1'..='6') => {
                self.show(View::ALL[usize::from(digit as u8 - b'1')]);
            }
            code => return self.scroll_by(code),
        }
        Effect::Redraw
    }

    fn scroll_by(&mut self, code: KeyCode) -> Effect {
        let scroll = self.scrolls.entry(self.request.view).or_default();
        *scroll = match code {
            KeyCode::Up | KeyCode::Char('k') => scroll.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => scroll.saturating_add(1),
            KeyCode::PageUp => scroll.saturating_sub(PAGE),
            KeyCode::PageDown => scroll.saturating_add(PAGE),
            KeyCode::Home => 0,
            KeyCode::End => usize::MAX / 2,
            _ => return Effect::Nothing,
        };
        Effect::Redraw
    }

    fn turn(&mut self, by: usize) {
        let at = View::ALL.iter().position(|view| *view == self.request.view).unwrap_or(0);
        self.show(View::ALL[(at + by) % View::ALL.len()]);
    }

    fn show(&mut self, view: View) {
        self.request.view = view;
        self.forbidden = None;
    }

    /// Takes the next longer or shorter interval.
    fn step(&mut self, direction: i32) {
        let mut steps = STEPS_MS.iter().map(|ms| Duration::from_millis(*ms));
        let current = self.request.interval;
        let next = match direction {
            1 => steps.find(|step| *step > current),
            _ => steps.rfind(|step| *step < current),
        };
        self.request.interval = next.unwrap_or(current).clamp(INTERVALS[0], INTERVALS[1]);
    }
}

fn orders_of(view: View) -> &'static [&'static str] {
    match view {
        View::Overview | View::Commands => COMMAND_ORDERS,
        View::Clients => CLIENT_ORDERS,
        View::SlowLog | View::Replication | View::Findings => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::sample;

    fn press(app: &mut App, codes: &[KeyCode]) -> Effect {
        codes.iter().map(|code| app.key(KeyEvent::from(*code))).last().expect("a key")
    }

    fn app() -> App {
        App::new("here".into(), Duration::from_secs(1), false)
    }

    #[test]
    fn keys_choose_views_and_intervals() {
        let mut app = app();
        press(&mut app, &[KeyCode::Char('3'), KeyCode::Tab]);
        assert_eq!(app.request.view, View::Clients);
        press(&mut app, &[KeyCode::Char('1'), KeyCode::BackTab]);
        assert_eq!(app.request.view, View::Findings);
        press(&mut app, &[KeyCode::Char('+'), KeyCode::Char('+'), KeyCode::Char('-')]);
        assert_eq!(app.request.interval, Duration::from_secs(2));
        press(&mut app, &[KeyCode::Char('-'); 20]);
        assert_eq!(app.request.interval, INTERVALS[0]);
        press(&mut app, &[KeyCode::Char('+'); 20]);
        assert_eq!(app.request.interval, INTERVALS[1]);
        press(&mut app, &[KeyCode::Char('p')]);
        assert!(app.request.is_paused);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!([app.key(control_c), press(&mut app, &[KeyCode::Char('q')])], [Effect::Quit; 2]);
        assert_eq!(press(&mut app, &[KeyCode::F(5)]), Effect::Nothing);
    }

    #[test]
    fn each_view_scrolls_and_is_sorted_by_itself() {
        let mut app = app();
        press(&mut app, &[KeyCode::Char('4'), KeyCode::End, KeyCode::Char('s')]);
        app.bound_scroll(50, 20);
        assert_eq!((app.scroll(), app.order(View::Clients), app.order(View::Commands)), (30, "age", "share"));
        press(&mut app, &[KeyCode::Up, KeyCode::PageUp]);
        assert_eq!(app.scroll(), 19);
        press(&mut app, &[KeyCode::Char('2')]);
        assert_eq!(app.scroll(), 0);
    }

    #[test]
    fn a_sample_ends_the_loss_of_a_connection() {
        let mut app = app();
        app.update(Update::Lost { reason: "refused".into(), retry: Instant::now() });
        assert!(app.lost.is_some());
        let start = Instant::now();
        app.update(Update::Sample(Box::new(sample(start, 0, "run_id:a\n", &[]))));
        assert!(app.lost.is_none() && app.history.rates.is_empty());
        app.update(Update::Sample(Box::new(sample(start, 1, "run_id:a\ntotal_commands_processed:5\n", &[]))));
        assert_eq!(app.history.rates, [Some(5.0)]);
        for second in 2..700 {
            app.update(Update::Sample(Box::new(sample(start, second, "run_id:a\n", &[]))));
        }
        assert_eq!(app.history.rates.len(), HISTORY_MAX);
    }
}
