//! Locks that a test holds against the schedulers while it does something.

use testbed::eventually;

use crate::system::{PATIENCE, System};

/// No lease can be granted or ended.
pub const NO_LEASES: &str = "do $$ begin
    lock table fencepost.lease in share mode;
    while not exists (select from public.go) loop perform pg_sleep(0.02); end loop;
end $$";

/// No job can be stored, read or looked at.
pub const NO_JOBS: &str = "do $$ begin
    lock table fencepost.job in access exclusive mode;
    while not exists (select from public.go) loop perform pg_sleep(0.02); end loop;
end $$";

/// No transition can be committed: each one is counted.
pub const NO_TRANSITIONS: &str = "do $$ begin
    lock table fencepost.tally in access exclusive mode;
    while not exists (select from public.go) loop perform pg_sleep(0.02); end loop;
end $$";

/// The job enqueued first cannot be touched.
pub const FIRST_READY: &str = "do $$ begin
    perform from fencepost.ready order by position limit 1 for update;
    while not exists (select from public.go) loop perform pg_sleep(0.02); end loop;
end $$";

/// Holds a lock while the body runs. Once in a test.
pub async fn holding(system: &System<'_>, lock: &'static str, body: impl AsyncFnOnce()) {
    system.db.run("create table public.go as select where false").await;
    let held = "select count(*) from pg_locks l join pg_stat_activity a using (pid)
        where a.datname = current_database() and a.query like 'do $$ begin%' and l.granted and l.locktype = 'relation'
            and l.mode in ('ShareLock', 'AccessExclusiveLock', 'RowShareLock') and l.relation::regclass::text like 'fencepost.%'";
    let then = async {
        eventually(PATIENCE, "the lock is held", async || system.db.number(held).await > 0).await;
        body().await;
        system.db.run("insert into public.go select").await;
    };
    tokio::join!(system.db.run(lock), then);
}
