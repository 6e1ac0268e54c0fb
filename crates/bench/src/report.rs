//! Figures for people and for programs.

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use serde_json::{Value, json};

use crate::{
    counters::Counters,
    meter::TOTAL_CPU,
    scenario::{Sample, Scenario},
    stats::{median, spread},
};

/// How much of a core went to anything else on the machine while a scenario and its floor ran: how disturbed the figure is.
pub(crate) const OTHERS_CPU: &str = "others_cpu_percent";

/// Above it, in percent of a core, a figure says little.
const DISTURBED: f64 = 10.0;

/// The counters of the second table: heading and name.
const COSTS: [(&str, &str); 13] = [
    ("cpu s/1M: all", TOTAL_CPU),
    ("sched", "scheduler_cpu_s_per_1m_jobs"),
    ("workers", "workers_cpu_s_per_1m_jobs"),
    ("generator", "generator_cpu_s_per_1m_jobs"),
    ("postgres", "postgres_cpu_s_per_1m_jobs"),
    ("peak MiB: sched", "scheduler_peak_mib"),
    ("workers", "workers_peak_mib"),
    ("generator", "generator_peak_mib"),
    ("postgres", "postgres_peak_mib"),
    ("WAL B/job", "wal_bytes_per_job"),
    ("commits/job", "commits_per_job"),
    ("stmts/job", "statements_per_job"),
    ("dead tuples", "dead_tuples_left"),
];

/// What all runs of a scenario came to.
#[derive(Debug)]
pub(crate) struct Figure {
    scenario: &'static Scenario,
    values: Vec<f64>,
    floors: Vec<f64>,
    ratios: Vec<f64>,
    counters: Counters,
}

impl Figure {
    /// Sums runs up.
    pub(crate) fn of(scenario: &'static Scenario, runs: &[Sample]) -> Self {
        let floors = runs.iter().filter_map(|run| run.floor).collect();
        // Run by run, since both parts of a run met the same machine.
        let ratios = runs.iter().filter_map(|run| run.floor.map(|floor| run.value / floor)).collect();
        let counters = Counters::medians(&runs.iter().map(|run| &run.counters).collect::<Vec<_>>());
        Self { scenario, values: runs.iter().map(|run| run.value).collect(), floors, ratios, counters }
    }

    fn floor(&self) -> Option<f64> {
        (!self.floors.is_empty()).then(|| median(&self.floors))
    }

    fn ratio(&self) -> Option<f64> {
        (!self.ratios.is_empty()).then(|| median(&self.ratios))
    }

    /// One object, with the same fields for ever.
    pub(crate) fn to_json(&self, quick: bool) -> Value {
        let counters: serde_json::Map<_, _> =
            self.counters.iter().map(|(name, value)| (name.to_owned(), rounded(value))).collect();
        json!({
            "name": self.scenario.name,
            "value": rounded(median(&self.values)),
            "unit": self.scenario.unit,
            "better": self.scenario.better.name(),
            "floor": self.floor().map(rounded),
            "floors": self.floors.iter().copied().map(rounded).collect::<Vec<_>>(),
            "floor_is": self.scenario.floor,
            "ratio": self.ratio().map(rounded),
            "spread": rounded(spread(&self.values)),
            "quick": quick,
            "runs": self.values.iter().copied().map(rounded).collect::<Vec<_>>(),
            "counters": counters,
        })
    }

    /// One line.
    pub(crate) fn line(&self) -> String {
        let floor = self.floor().map(|floor| format!(", floor {}", shown(floor))).unwrap_or_default();
        let ratio = self.ratio().map(|ratio| format!(", ratio {ratio:.2}")).unwrap_or_default();
        let Scenario { unit, about, .. } = self.scenario;
        format!("{} {unit}{floor}{ratio} ({about})", shown(median(&self.values)))
    }
}

/// The figures, then what they cost, then what else was counted.
pub(crate) fn table(figures: &[Figure]) -> String {
    let mut parts = vec![main_table(figures), cost_table(figures)];
    parts.extend(disturbed(figures));
    parts.extend(figures.iter().filter_map(others));
    parts.join("\n\n")
}

fn main_table(figures: &[Figure]) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header([
        "scenario",
        "value",
        "unit",
        "better",
        "floor",
        "ratio",
        "spread",
        "runs",
        "others' cpu",
    ]);
    for figure in figures {
        let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        table.add_row([
            figure.scenario.name.to_owned(),
            shown(median(&figure.values)),
            figure.scenario.unit.to_owned(),
            figure.scenario.better.name().to_owned(),
            or_dash(figure.floor().map(shown)),
            or_dash(figure.ratio().map(|ratio| format!("{ratio:.2}"))),
            or_dash((figure.values.len() > 1).then(|| format!("{:.0} %", spread(&figure.values) * 100.0))),
            figure.values.len().to_string(),
            or_dash(figure.counters.get(OTHERS_CPU).map(|percent| format!("{percent:.0} %"))),
        ]);
    }
    aligned(table, &[1, 4, 5, 6, 7, 8])
}

fn cost_table(figures: &[Figure]) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header([&["scenario"], &COSTS.map(|(heading, _)| heading)[..]].concat());
    for figure in figures {
        let cost = |name| figure.counters.get(name).map_or_else(|| "-".to_owned(), shown);
        let costs = COSTS.map(|(_, name)| cost(name));
        table.add_row([figure.scenario.name.to_owned()].into_iter().chain(costs));
    }
    aligned(table, &(1..=COSTS.len()).collect::<Vec<_>>())
}

/// Says which figures are not to be trusted.
fn disturbed(figures: &[Figure]) -> Option<String> {
    let disturbed = |figure: &&Figure| figure.counters.get(OTHERS_CPU).is_some_and(|percent| percent > DISTURBED);
    let names: Vec<&str> = figures.iter().filter(disturbed).map(|figure| figure.scenario.name).collect();
    let what = "other programs had more than a tenth of a core meanwhile, so their figures and ratios say little";
    (!names.is_empty()).then(|| format!("Disturbed: {}: {what}.", names.join(", ")))
}

/// The counters that only some scenarios have.
fn others(figure: &Figure) -> Option<String> {
    let own = figure
        .counters
        .iter()
        .filter(|(name, _)| COSTS.iter().all(|(_, common)| common != name) && *name != OTHERS_CPU);
    let lines: Vec<String> = own.map(|(name, value)| format!("  {name} {}", shown(value))).collect();
    (!lines.is_empty()).then(|| format!("{}\n{}", figure.scenario.name, lines.join("\n")))
}

fn aligned(mut table: Table, numbers: &[usize]) -> String {
    for &at in numbers {
        if let Some(column) = table.column_mut(at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// Three digits or more, with a comma before each thousand.
pub(crate) fn shown(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        large if large >= 100.0 => 0,
        middle if middle >= 10.0 => 1,
        small if small >= 1.0 => 2,
        _ => 4,
    };
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), None), |(whole, rest)| (whole, Some(rest)));
    let mut grouped = String::new();
    for (at, digit) in whole.char_indices() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    rest.map_or_else(|| grouped.clone(), |rest| format!("{grouped}.{rest}"))
}

/// Six digits after the point are more than anything here is worth.
fn rounded(value: f64) -> Value {
    json!((value * 1e6).round() / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios;

    fn sample(value: f64, floor: Option<f64>) -> Sample {
        let mut counters = Counters::default();
        counters.set("wal_bytes_per_job", value / 10.0);
        Sample { value, floor, counters }
    }

    #[test]
    fn an_object_has_its_fields_and_medians() {
        let scenario = &scenarios::ALL[0];
        let runs = [sample(10.0, Some(20.0)), sample(30.0, Some(40.0)), sample(20.0, Some(25.0))];
        let json = Figure::of(scenario, &runs).to_json(false);
        let fields: Vec<&str> =
            json.as_object().map(|object| object.keys().map(String::as_str).collect()).unwrap_or_default();
        let expected = [
            "better", "counters", "floor", "floor_is", "floors", "name", "quick", "ratio", "runs", "spread", "unit",
            "value",
        ];
        assert_eq!(fields, expected);
        assert_eq!(json["name"], scenario.name);
        assert_eq!((&json["value"], &json["floor"], &json["ratio"]), (&json!(20.0), &json!(25.0), &json!(0.75)));
        assert_eq!((&json["runs"], &json["floors"]), (&json!([10.0, 30.0, 20.0]), &json!([20.0, 40.0, 25.0])));
        assert_eq!(json["counters"], json!({ "wal_bytes_per_job": 2.0 }));
    }

    #[test]
    fn a_figure_without_floor_has_null_and_no_ratio() {
        let json = Figure::of(&scenarios::ALL[0], &[sample(1.5, None)]).to_json(true);
        assert_eq!((&json["floor"], &json["ratio"]), (&Value::Null, &Value::Null));
    }

    #[test]
    fn numbers_are_grouped_and_short() {
        let texts = [0.0, 0.00123, 1.234, 12.34, 123.4, 1_234.5, 1_234_567.0, -1_234.0].map(shown);
        assert_eq!(texts, ["0", "0.0012", "1.23", "12.3", "123", "1,234", "1,234,567", "-1,234"]);
    }
}
