//! Tasks of a language's runtime: a row for the tasks that are equal in state, lock, place and functions.

use std::collections::HashMap;

use super::table::{Table, UNKNOWN, known, number, text};
use super::tables::ROWS_MAX;
use crate::recording::{Recording, Runtime, TaskState};

/// Innermost functions of a row.
const FRAMES_MAX: usize = 4;

/// The answer of the subcommand.
pub(crate) fn tasks(recording: &Recording) -> String {
    let Some(runtime) = &recording.runtime else {
        return "(this process has no runtime whose tasks the doctor can read)\n".to_string();
    };
    let mut out = format!("{}, {} samples\n", title(runtime), runtime.seen);
    let table = table(runtime);
    if !table.rows.is_empty() {
        out += "\n";
        out += &table.first(ROWS_MAX).lines();
    }
    for note in &runtime.notes {
        out += &format!("({note})\n");
    }
    out
}

fn title(runtime: &Runtime) -> String {
    format!("Tasks of {}", runtime.name)
}

/// The most frequent first.
pub(super) fn table(runtime: &Runtime) -> Table {
    let mut sums: HashMap<Vec<String>, u64> = HashMap::new();
    for (task, count) in &runtime.tasks {
        let frames: Vec<&str> = task.stack.iter().take(FRAMES_MAX).map(String::as_str).collect();
        let holds = if task.holds.is_empty() { UNKNOWN.to_string() } else { task.holds.join(", ") };
        let cells = vec![
            state_name(task.state).to_string(),
            known(task.lock.as_ref()),
            holds,
            known(task.place.as_ref()),
            if frames.is_empty() { UNKNOWN.to_string() } else { frames.join(" < ") },
        ];
        *sums.entry(cells).or_default() += count;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|(a, count_a), (b, count_b)| count_b.cmp(count_a).then_with(|| a.cmp(b)));
    let average = |count: u64| format!("{:.1}", count as f64 / runtime.seen.max(1) as f64);
    let mut table = Table::new(
        title(runtime),
        &[
            number("tasks"),
            text("state"),
            text("waits for"),
            text("holds"),
            text("place"),
            text("innermost functions"),
        ],
    );
    table.rows.extend(sums.into_iter().map(|(cells, count)| [vec![average(count)], cells].concat()));
    table
}

pub(super) fn state_name(state: TaskState) -> &'static str {
    match state {
        TaskState::Running => "running",
        TaskState::Ready => "ready to run",
        TaskState::Lock => "waits for a lock",
        TaskState::Signal => "waits for another task",
        TaskState::Sleep => "sleeps",
        TaskState::Network => "waits for the network",
        TaskState::Call => "in a call",
        TaskState::Idle => "waits for work",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;
    use crate::recording::Task;

    #[test]
    fn tasks_that_look_alike_are_one_row_with_their_average_number() {
        let task = |deep: &str| Task {
            state: TaskState::Lock,
            lock: Some("sync.Mutex".to_string()),
            place: Some("main.serve (main.go:9)".to_string()),
            stack: ["lock", "serve", "handle", "loop", deep].map(str::to_string).to_vec(),
            ..Task::default()
        };
        let mut recording = golden::idle();
        assert!(tasks(&recording).starts_with("(this process has no runtime"));
        recording.runtime = Some(Runtime {
            name: "Go 1.26".to_string(),
            seen: 10,
            tasks: vec![(Task::default(), 5), (task("a"), 60), (task("b"), 40)],
            pauses: Vec::new(),
            notes: vec!["not all of them".to_string()],
        });
        let text = tasks(&recording);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "Tasks of Go 1.26, 10 samples");
        assert!(lines[3].trim_start().starts_with("10.0  waits for a lock  sync.Mutex  -"), "{text}");
        assert!(lines[3].ends_with("main.serve (main.go:9)  lock < serve < handle < loop"), "{text}");
        assert!(lines[4].trim_start().starts_with("0.5  waits for work"), "{text}");
        assert_eq!(lines[5], "(not all of them)");
    }
}
