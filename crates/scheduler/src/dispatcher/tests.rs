use queue_core::QueueName;
use queue_store::SchedulerId;
use tokio::sync::mpsc::error::TryRecvError;

use super::*;

fn handle() -> Handle {
    Handle::new(Arc::default(), Duration::from_secs(8))
}

/// One stream of session 1: whose it is, and what it would receive.
fn enter(handle: &Handle, epoch: i32) -> (Owner, mpsc::Receiver<Claims>) {
    let owner = Owner { session_no: 1, epoch, scheduler: SchedulerId(1) };
    let wants = Wants { queues: vec![QueueName::new("q").unwrap()], kinds: Vec::new() };
    let (sender, grants) = mpsc::channel(1);
    handle.enter(owner, wants, sender);
    (owner, grants)
}

/// What a session may be granted now.
fn free(handle: &Handle, owner: Owner) -> Option<u32> {
    handle.state().seat(owner).map(|seat| seat.free())
}

#[test]
fn of_two_streams_of_a_session_the_later_hello_has_the_seat_whichever_enters_first() {
    let handle = handle();
    let (second, mut seconds) = enter(&handle, 2);
    let (first, mut firsts) = enter(&handle, 1);
    assert!(handle.is_replaced(first) && !handle.is_replaced(second));
    assert_eq!(firsts.try_recv().unwrap_err(), TryRecvError::Disconnected, "and is told so");
    assert_eq!(seconds.try_recv().unwrap_err(), TryRecvError::Empty);
    handle.leave(first);
    let (third, _thirds) = enter(&handle, 3);
    assert!(handle.is_replaced(second) && !handle.is_replaced(third));
    assert_eq!(seconds.try_recv().unwrap_err(), TryRecvError::Disconnected);
}

#[test]
fn slots_are_reserved_for_new_jobs_only_while_nothing_waits_and_are_never_given_twice() {
    let handle = handle();
    let (owner, _grants) = enter(&handle, 1);
    let (lane, other) = (Lane { queue: 1, priority: 4, kind: 1 }, Lane { queue: 1, priority: 0, kind: 1 });
    handle.credit(owner, 3);
    handle.trust(owner);
    assert_eq!(handle.reserve(&[lane]), [], "the lane is not known");
    for lane in [lane, other] {
        handle.state().lanes.learn(lane, Instant::now());
        handle.state().profiles[0].1.fit(lane);
    }
    assert_eq!(handle.reserve(&[lane, other]), [owner, owner]);
    assert_eq!(handle.reserve(&[lane, other]), [], "one is left: not enough for both");
    assert_eq!(handle.reserve(&[other]), [owner]);
    assert!(handle.plan().is_none(), "nor is any left for a claim");
    handle.leased(&[owner], Vec::new(), Instant::now());
    handle.hint(&[Hint::anywhere(other)]);
    assert_eq!(handle.reserve(&[lane]), [], "something waits for this slot, whatever its priority");
    let plan = handle.plan().expect("a claim");
    assert_eq!(plan.request.slots, [SlotRequest { owner, slots: 1 }]);
    assert!(handle.plan().is_none(), "its slots are reserved while it is under way");
    handle.failed(&plan);
    assert_eq!(free(&handle, owner), Some(1));
}

#[test]
fn credits_count_in_full_only_once_a_grant_is_acknowledged() {
    let handle = handle();
    let (owner, _grants) = enter(&handle, 1);
    let grant = |jobs| handle.state().seat(owner).unwrap().granted += jobs;
    assert_eq!(free(&handle, owner), Some(0));
    handle.credit(owner, 100);
    assert_eq!((free(&handle, owner), handle.free_slots()), (Some(1), 100), "nothing is known of it yet");
    grant(1);
    assert_eq!(free(&handle, owner), Some(0));
    handle.trust(owner);
    assert_eq!(free(&handle, owner), Some(99));
    grant(50);
    assert_eq!(free(&handle, owner), Some(49));
    handle.close(owner);
    assert_eq!((free(&handle, owner), handle.free_slots()), (Some(0), 0));
}
