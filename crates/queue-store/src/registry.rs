//! Queues, kinds and lanes: small integers on the hot path, names at the edges.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use queue_core::{KindName, MAX_KINDS, MAX_LANES, MAX_QUEUES, NewJob, QueueName};
use sqlx::PgConnection;

use crate::StoreError;

/// Where ready jobs wait: (queue, priority, kind).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane {
    /// Number of the queue.
    pub queue: i32,
    /// 0 to 9; 9 first.
    pub priority: i16,
    /// Number of the kind.
    pub kind: i32,
}

/// How many queues, kinds and lanes are registered. They are only ever added: equal numbers are equal sets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Registered {
    /// Queues.
    pub queues: i64,
    /// Kinds.
    pub kinds: i64,
    /// Lanes.
    pub lanes: i64,
}

/// What is known of queues, kinds and lanes. They are only ever added, so a hit is always right.
#[derive(Debug, Default)]
pub struct Registry(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    queues: HashMap<QueueName, i32>,
    kinds: HashMap<KindName, i32>,
    queue_names: HashMap<i32, QueueName>,
    kind_names: HashMap<i32, KindName>,
    lanes: Vec<Lane>,
    lane_set: std::collections::HashSet<Lane>,
}

impl Registry {
    fn known(&self) -> std::sync::RwLockReadGuard<'_, Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a queue, if it is known here.
    pub fn queue(&self, name: &QueueName) -> Option<i32> {
        self.known().queues.get(name).copied()
    }

    /// The number of a kind, if it is known here.
    pub fn kind(&self, name: &KindName) -> Option<i32> {
        self.known().kinds.get(name).copied()
    }

    /// The name of a queue.
    pub fn queue_name(&self, queue: i32) -> Option<QueueName> {
        self.known().queue_names.get(&queue).cloned()
    }

    /// The name of a kind.
    pub fn kind_name(&self, kind: i32) -> Option<KindName> {
        self.known().kind_names.get(&kind).cloned()
    }

    /// All lanes known here, in the order in which they became known.
    pub fn lanes(&self) -> Vec<Lane> {
        self.known().lanes.clone()
    }

    /// How much of it is known here.
    pub fn size(&self) -> Registered {
        let known = self.known();
        let number = |length: usize| i64::try_from(length).unwrap_or(i64::MAX);
        Registered {
            queues: number(known.queue_names.len()),
            kinds: number(known.kind_names.len()),
            lanes: number(known.lanes.len()),
        }
    }

    /// The lane of a job, if all of it is known here.
    pub fn lane(&self, job: &NewJob) -> Option<Lane> {
        let known = self.known();
        let lane = Lane {
            queue: *known.queues.get(&job.queue)?,
            priority: job.priority.get().into(),
            kind: *known.kinds.get(&job.kind)?,
        };
        known.lane_set.contains(&lane).then_some(lane)
    }

    /// Reads everything that is registered. Three small tables.
    pub async fn reload(&self, conn: &mut PgConnection) -> Result<(), StoreError> {
        let queues = sqlx::query!("select queue_id, name from fencepost.queue").fetch_all(&mut *conn).await?;
        let kinds = sqlx::query!("select kind_id, name from fencepost.kind").fetch_all(&mut *conn).await?;
        let lanes = sqlx::query!("select queue_id, priority, kind_id from fencepost.lane").fetch_all(conn).await?;
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for row in queues {
            if let Ok(name) = QueueName::new(&row.name) {
                known.queue_names.insert(row.queue_id, name.clone());
                known.queues.insert(name, row.queue_id);
            }
        }
        for row in kinds {
            if let Ok(name) = KindName::new(&row.name) {
                known.kind_names.insert(row.kind_id, name.clone());
                known.kinds.insert(name, row.kind_id);
            }
        }
        for row in lanes {
            let lane = Lane { queue: row.queue_id, priority: row.priority, kind: row.kind_id };
            if known.lane_set.insert(lane) {
                known.lanes.push(lane);
            }
        }
        Ok(())
    }

    /// Registers the lane of a job. Fails with [`StoreError::Full`] where there are as many as there may be.
    pub async fn register(&self, conn: &mut PgConnection, job: &NewJob) -> Result<Lane, StoreError> {
        self.register_all(conn, &[job]).await?;
        self.lane_or_full(job)
    }

    /// Registers the lanes of jobs, as far as there is room for them, in as many statements as for one.
    pub async fn register_all(&self, conn: &mut PgConnection, jobs: &[&NewJob]) -> Result<(), StoreError> {
        self.reload(&mut *conn).await?;
        let unknown: Vec<&NewJob> = jobs.iter().copied().filter(|job| self.lane(job).is_none()).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let queues: Vec<&str> = unknown.iter().map(|job| job.queue.as_str()).collect();
        let kinds: Vec<&str> = unknown.iter().map(|job| job.kind.as_str()).collect();
        let priorities: Vec<i16> = unknown.iter().map(|job| job.priority.get().into()).collect();
        sqlx::query!(
            "-- register_queues
            insert into fencepost.queue (name)
            select distinct name
            from unnest($1::text[]) name
            where name not in (select name from fencepost.queue)
            order by name
            limit greatest(0, $2 - (select count(*) from fencepost.queue))
            on conflict do nothing",
            &queues as &[&str],
            MAX_QUEUES
        )
        .execute(&mut *conn)
        .await?;
        sqlx::query!(
            "-- register_kinds
            insert into fencepost.kind (name)
            select distinct name
            from unnest($1::text[]) name
            where name not in (select name from fencepost.kind)
            order by name
            limit greatest(0, $2 - (select count(*) from fencepost.kind))
            on conflict do nothing",
            &kinds as &[&str],
            MAX_KINDS
        )
        .execute(&mut *conn)
        .await?;
        sqlx::query!(
            "-- register_lanes
            insert into fencepost.lane (queue_id, priority, kind_id)
            select distinct q.queue_id, i.priority, k.kind_id
            from unnest($1::text[], $2::text[], $3::smallint[]) i (queue, kind, priority)
            join fencepost.queue q on q.name = i.queue
            join fencepost.kind k on k.name = i.kind
            where not exists (
                select
                from fencepost.lane l
                where l.queue_id = q.queue_id and l.priority = i.priority and l.kind_id = k.kind_id
            )
            order by q.queue_id, i.priority, k.kind_id
            limit greatest(0, $4 - (select count(*) from fencepost.lane))
            on conflict do nothing",
            &queues as &[&str],
            &kinds as &[&str],
            &priorities,
            MAX_LANES
        )
        .execute(&mut *conn)
        .await?;
        self.reload(conn).await
    }

    /// The lane of a job that was to be registered. Fails with [`StoreError::Full`] if there was no room.
    pub fn lane_or_full(&self, job: &NewJob) -> Result<Lane, StoreError> {
        self.lane(job).ok_or_else(|| StoreError::Full(self.what_is_full(job)))
    }

    fn what_is_full(&self, job: &NewJob) -> &'static str {
        if self.queue(&job.queue).is_none() {
            "queue: there are as many queues as there may be (10,000)"
        } else if self.kind(&job.kind).is_none() {
            "kind: there are as many kinds as there may be (10,000)"
        } else {
            "queue, priority and kind: there are as many combinations as there may be (50,000)"
        }
    }
}
