//! The protocol, explored to its last state within the bounds; and each condition left out in turn, which must be noticed.

use lease_model::{Bounds, Gap, Protocol};
use stateright::{Checker as _, Expectation, HasDiscoveries, Model as _};

/// Explored to the last state: a million of them.
const CALM: Bounds = Bounds { ticks: 1, ttl: 1, grants: 2, streams: 2, faults: 0 };

/// One stream breaks, one process crashes or one job takes too long. Explored as deep as [`DEPTH`].
const STORMY: Bounds = Bounds { faults: 1, ..CALM };

/// Steps that every path is followed. Of the conditions that can be left out the least obvious takes 16.
const DEPTH: usize = 17;

/// Names of the properties that must always hold and that some state breaks.
fn broken(protocol: Protocol) -> Vec<&'static str> {
    let checker = protocol.checker().threads(2).target_max_depth(DEPTH).finish_when(HasDiscoveries::AnyFailures);
    let found = checker.spawn_bfs().join().discoveries();
    let always = protocol.properties().into_iter().filter(|property| property.expectation == Expectation::Always);
    always.map(|property| property.name).filter(|name| found.contains_key(name)).collect()
}

#[test]
fn invariants_hold_in_every_state() {
    let checker = Protocol { bounds: CALM, gap: None }.checker().threads(2).spawn_bfs().join();
    println!("{} states, {} steps deep", checker.unique_state_count(), checker.max_depth());
    // Also that everything that should be possible is: a model in which nothing happens breaks nothing.
    checker.assert_properties();
}

#[test]
fn invariants_hold_whatever_breaks_once() {
    assert_eq!(broken(Protocol { bounds: STORMY, gap: None }), [""; 0]);
}

#[test]
fn each_condition_that_is_left_out_breaks_an_invariant() {
    let gaps = [
        Gap::SettleIgnoresToken,
        Gap::ClaimIgnoresDeath,
        Gap::RenewIgnoresDeath,
        Gap::HelloIgnoresDeath,
        Gap::TakeBackIgnoresToken,
        Gap::TakeBackOnItsWay,
        Gap::RenewTakesWhatIsOnItsWay,
        Gap::StartAfterHello,
        Gap::StartIgnoresDeadline,
        Gap::DeadlineFromAnswer,
    ];
    for gap in gaps {
        let broken = broken(Protocol { bounds: STORMY, gap: Some(gap) });
        println!("{gap:?}: {broken:?}");
        assert_ne!(broken, [""; 0], "{gap:?}");
    }
}
